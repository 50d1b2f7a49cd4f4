#include "weft/linear/data/internal/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "weft/base/error.h"

namespace weft::linear::internal {
namespace {

constexpr std::size_t kPiece = 1 << 20;

}  // namespace

TextFile::TextFile(const std::string& path)
    : path_(path),
      file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)),
      raw_(std::make_unique_for_overwrite<char[]>(kPiece)) {
  if (!file_) fail_io("cannot open", path_);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_io("cannot read", path_);
  WEFT_REQUIRE(!S_ISDIR(status.st_mode), path_ + " is a folder, not a file");
  regular_ = S_ISREG(status.st_mode);
  if (regular_) size_ = static_cast<std::uint64_t>(status.st_size);
}

TextFile::~TextFile() {
  if (gzip_.value_or(false)) inflateEnd(&zip_);
}

bool TextFile::is_gzip() {
  if (gzip_) return *gzip_;
  first_ = {raw_.get(), read(raw_.get(), kPiece)};
  if (first_.starts_with("\x1f\x8b")) {
    constexpr int kGzip = 16;
    WEFT_CHECK(inflateInit2(&zip_, kGzip + MAX_WBITS) == Z_OK, "zlib cannot be initialized");
    text_ = std::make_unique_for_overwrite<char[]>(kPiece);
    return gzip_.emplace(true);
  }
  return gzip_.emplace(false);
}

void TextFile::seek(std::uint64_t offset) {
  WEFT_CHECK(regular_ && !is_gzip(), "a seek in a file that has no places");
  if (::lseek(file_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) fail_io("cannot read", path_);
  first_ = {};
}

// Fills the buffer, unless the file ends before.
std::size_t TextFile::read(char* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(file_.get(), to + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read", path_);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::string_view TextFile::next() {
  if (is_gzip()) return inflate_some();
  if (first_.empty()) return {raw_.get(), read(raw_.get(), kPiece)};
  return std::exchange(first_, {});
}

std::string_view TextFile::inflate_some() {
  zip_.next_out = reinterpret_cast<Bytef*>(text_.get());
  zip_.avail_out = static_cast<uInt>(kPiece);
  while (zip_.avail_out > 0) {
    if (zip_.avail_in == 0) {
      const std::string_view input = first_.empty()
                                         ? std::string_view(raw_.get(), read(raw_.get(), kPiece))
                                         : std::exchange(first_, {});
      if (input.empty()) break;
      zip_.next_in = reinterpret_cast<Bytef*>(raw_.get());
      zip_.avail_in = static_cast<uInt>(input.size());
    }
    in_member_ = true;
    const int code = inflate(&zip_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      in_member_ = false;
      inflateReset(&zip_);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      fail_gzip(std::string("damaged gzip data: ") + (zip_.msg != nullptr ? zip_.msg : "unknown"));
    }
  }
  const std::size_t made = kPiece - zip_.avail_out;
  if (made == 0 && in_member_) fail_gzip("truncated: the gzip data has no end");
  return {text_.get(), made};
}

void TextFile::fail_gzip(const std::string& reason) const {
  throw Error(Errc::kCorrupt, path_ + ": " + reason);
}

}  // namespace weft::linear::internal
