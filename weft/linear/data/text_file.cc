#include "weft/linear/data/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/kind/file_kind.h"

namespace weft::linear {
namespace {

constexpr std::size_t kPiece = 1 << 20;

}  // namespace

struct TextFile::Inflate {
  z_stream zip{};
  bool in_member = false;  // A file may have several members, one after the other.
  std::unique_ptr<char[]> text = std::make_unique_for_overwrite<char[]>(kPiece);

  Inflate() {
    constexpr int kGzip = 16;
    WEFT_CHECK(inflateInit2(&zip, kGzip + MAX_WBITS) == Z_OK, "zlib cannot be initialized");
  }
  ~Inflate() { inflateEnd(&zip); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
};

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

TextFile::~TextFile() = default;

bool TextFile::is_gzip() {
  if (known_) return inflate_ != nullptr;
  known_ = true;
  first_ = read();
  if (first_.starts_with("\x1f\x8b")) inflate_ = std::make_unique<Inflate>();
  if (const auto kind = wrong_kind(first_); kind && inflate_ == nullptr)
    throw Error(Errc::kCorrupt, path_ + " is " + *kind);
  return inflate_ != nullptr;
}

void TextFile::seek(std::uint64_t offset) {
  WEFT_CHECK(regular_ && !is_gzip(), "a seek in a file that has no places");
  if (::lseek(file_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) fail_io("cannot read", path_);
  first_ = {};
}

// A whole piece of the file, unless the file ends before.
std::string_view TextFile::read() {
  std::size_t done = 0;
  while (done < kPiece) {
    const ssize_t got = ::read(file_.get(), raw_.get() + done, kPiece - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read", path_);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return {raw_.get(), done};
}

std::string_view TextFile::next() {
  if (is_gzip()) return inflate_some();
  return first_.empty() ? read() : std::exchange(first_, {});
}

std::string_view TextFile::inflate_some() {
  z_stream& zip = inflate_->zip;
  zip.next_out = reinterpret_cast<Bytef*>(inflate_->text.get());
  zip.avail_out = static_cast<uInt>(kPiece);
  while (zip.avail_out > 0) {
    if (zip.avail_in == 0) {
      const std::string_view input = first_.empty() ? read() : std::exchange(first_, {});
      if (input.empty()) break;
      zip.next_in = reinterpret_cast<Bytef*>(raw_.get());
      zip.avail_in = static_cast<uInt>(input.size());
    }
    inflate_->in_member = true;
    const int code = inflate(&zip, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      inflate_->in_member = false;
      inflateReset(&zip);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      throw Error(Errc::kCorrupt,
                  path_ + ": damaged gzip data: " + (zip.msg != nullptr ? zip.msg : "unknown"));
    }
  }
  const std::size_t made = kPiece - zip.avail_out;
  if (made == 0 && inflate_->in_member)
    throw Error(Errc::kCorrupt, path_ + ": truncated: the gzip data has no end");
  return {inflate_->text.get(), made};
}

}  // namespace weft::linear
