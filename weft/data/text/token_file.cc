#include "weft/data/text/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/data/text/internal/token_header.h"

namespace weft::data::text {
namespace {

void check_info(const TokenFileInfo& info, const std::string& path) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  WEFT_REQUIRE(info.vocab_size >= 1 && info.vocab_size <= kMost,
               path + ": a vocabulary of " + std::to_string(info.vocab_size) +
                   " must be from 1 to " + std::to_string(kMost));
  WEFT_REQUIRE(!info.end_token || (*info.end_token >= 0 && *info.end_token < info.vocab_size),
               path + ": end token " + std::to_string(info.end_token.value_or(-1)) +
                   " is not in the vocabulary of " + std::to_string(info.vocab_size));
}

}  // namespace

struct TokenFile::Mapping {
  const unsigned char* bytes = nullptr;
  std::int64_t size = 0;

  explicit Mapping(const std::string& path) {
    // A pipe that nobody writes to would block here.
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!file) fail_io("cannot open", path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail_io("cannot read", path);
    WEFT_REQUIRE(S_ISREG(status.st_mode), path + " is not a file");
    size = status.st_size;
    if (size == 0) return;
    void* const mapped =
        ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapped == MAP_FAILED) fail_io("cannot map", path);
    bytes = static_cast<const unsigned char*>(mapped);
  }
  ~Mapping() {
    if (size > 0) ::munmap(const_cast<unsigned char*>(bytes), static_cast<std::size_t>(size));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

TokenFile TokenFile::open(const std::string& path) {
  TokenFile file(path, std::make_shared<const Mapping>(path));
  const Mapping& mapping = *file.mapping_;
  const auto begin = std::string_view(reinterpret_cast<const char*>(mapping.bytes),
                                      static_cast<std::size_t>(mapping.size));
  const internal::TokenHeader header = internal::parse_token_header(
      begin.substr(0, internal::kTokenHeaderBytes), mapping.size, path);
  file.tokens_ = mapping.bytes + internal::kTokenHeaderBytes;
  file.count_ = header.count;
  file.width_ = header.width;
  file.sum_ = header.sum;
  file.info_ = header.info;
  return file;
}

std::int64_t TokenFile::token(std::int64_t at) const {
  std::uint32_t value = 0;
  std::memcpy(&value, tokens_ + at * width_, static_cast<std::size_t>(width_));
  return value;
}

void TokenFile::read(std::int64_t begin, std::span<std::int64_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  WEFT_REQUIRE(begin >= 0 && begin <= count_ && count <= count_ - begin,
               path_ + ": " + std::to_string(count) + " tokens from " + std::to_string(begin) +
                   " on, of " + std::to_string(count_));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = token(begin + i);
    if (value >= info_.vocab_size) {
      throw Error(Errc::kCorrupt, path_ + ": token " + std::to_string(begin + i) + " is " +
                                      std::to_string(value) + ", not below the vocabulary of " +
                                      std::to_string(info_.vocab_size));
    }
    out[static_cast<std::size_t>(i)] = value;
  }
}

std::int64_t TokenFile::find_end(std::int64_t from, std::int64_t end) const {
  WEFT_REQUIRE(from >= 0 && from <= end && end <= count_, path_ + ": find_end outside the file");
  if (!info_.end_token) return end;
  while (from < end && token(from) != *info_.end_token) ++from;
  return from;
}

void TokenFile::verify() const {
  std::vector<std::int64_t> some(1 << 16);
  for (std::int64_t at = 0; at < count_; at += static_cast<std::int64_t>(some.size())) {
    const auto size =
        static_cast<std::size_t>(std::min(count_ - at, static_cast<std::int64_t>(some.size())));
    read(at, std::span(some).first(size));
  }
  if (crc32c(tokens_, static_cast<std::size_t>(count_ * width_)) != sum_) {
    throw Error(Errc::kCorrupt,
                path_ + ": the checksum of its tokens is wrong: the file is damaged");
  }
}

bool TokenFile::is_same(const TokenFile& other) const {
  return count_ == other.count_ && sum_ == other.sum_ &&
         info_.fingerprint == other.info_.fingerprint &&
         info_.vocab_size == other.info_.vocab_size && info_.end_token == other.info_.end_token;
}

void TokenFile::expect(const Tokenizer& tokenizer) const {
  const bool same = info_.fingerprint == 0 || info_.fingerprint == tokenizer.fingerprint();
  if (same && info_.vocab_size <= tokenizer.vocab_size()) return;
  throw Error(Errc::kBadConfig, path_ + " was made with another tokenizer (vocabulary " +
                                    std::to_string(info_.vocab_size) + ", here " +
                                    std::to_string(tokenizer.vocab_size()) +
                                    "); use that tokenizer, or tokenize the text again");
}

TokenSplit split_tokens(const TokenFile& file, double validation) {
  WEFT_REQUIRE(validation >= 0 && validation < 1,
               "a share of " + std::to_string(validation) +
                   " for validation must be at least 0 and below 1");
  const std::int64_t count = file.size();
  std::int64_t cut =
      count - static_cast<std::int64_t>(std::llround(static_cast<double>(count) * validation));
  if (validation > 0 && file.info().end_token && cut > 0)
    cut = std::min(file.find_end(cut - 1, count) + 1, count);
  WEFT_REQUIRE(cut > 0, file.path() + ": no tokens are left to train on");
  return {{0, cut}, {cut, count}};
}

TokenWriter::TokenWriter(std::string path, TokenFileInfo info)
    : path_(std::move(path)), temporary_(path_ + ".tmp.XXXXXX"), info_(info) {
  check_info(info_, path_);
  file_.reset(::mkostemp(temporary_.data(), O_CLOEXEC));
  if (!file_) fail_io("cannot create a file beside", path_);
  buffer_.assign(internal::kTokenHeaderBytes, '\0');
}

TokenWriter::~TokenWriter() {
  if (file_) ::unlink(temporary_.c_str());
}

void TokenWriter::flush() {
  write_all(file_.get(), buffer_, temporary_);
  buffer_.clear();
}

void TokenWriter::append(std::span<const TokenId> ids) {
  WEFT_REQUIRE(static_cast<bool>(file_), path_ + " is finished");
  for (const TokenId id : ids) {
    WEFT_REQUIRE(id >= 0 && id < info_.vocab_size, path_ + ": token " + std::to_string(id) +
                                                       " is not in the vocabulary of " +
                                                       std::to_string(info_.vocab_size));
  }
  const auto width = static_cast<std::size_t>(internal::token_width(info_.vocab_size));
  const std::size_t from = buffer_.size();
  buffer_.resize(from + ids.size() * width);
  for (std::size_t i = 0; i < ids.size(); ++i)
    std::memcpy(buffer_.data() + from + i * width, &ids[i], width);
  sum_ = crc32c(buffer_.data() + from, ids.size() * width, sum_);
  count_ += static_cast<std::int64_t>(ids.size());
  if (buffer_.size() >= std::size_t{1} << 20) flush();
}

void TokenWriter::finish() {
  WEFT_REQUIRE(static_cast<bool>(file_), path_ + " is finished");
  flush();
  const std::string header =
      internal::render_token_header({count_, internal::token_width(info_.vocab_size), sum_, info_});
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) fail_io("cannot write", temporary_);
  write_all(file_.get(), header, temporary_);
  if (::fchmod(file_.get(), 0644) != 0 || ::fsync(file_.get()) != 0)
    fail_io("cannot flush", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("cannot replace", path_);
  file_.reset();
  flush_directory(parent_of(path_));
}

}  // namespace weft::data::text
