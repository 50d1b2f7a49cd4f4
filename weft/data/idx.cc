#include "weft/data/internal/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "weft/base/error.h"
#include "weft/base/kind/file_kind.h"

namespace weft::data {
namespace {

constexpr const char* kDebianFolder = "/usr/share/datasets/fashion-mnist";
// Inflating expands deflate's data at most 1032 times (https://zlib.net/zlib_tech.html).
constexpr std::int64_t kMaxDeflateRatio = 1032;
constexpr int kMaxDims = 4;

// Reads the bytes of a plain or gzip file in order.
class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path), file_(nullptr, &std::fclose) {
    // Before it is opened: a pipe that nobody writes to would block.
    std::error_code failed;
    file_bytes_ = static_cast<std::int64_t>(std::filesystem::file_size(path, failed));
    if (failed == std::errc::not_supported || failed == std::errc::is_a_directory)
      throw Error(Errc::kBadConfig, path + " is not a file");
    if (failed) throw Error(Errc::kBadConfig, path + ": " + failed.message());
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) throw Error(Errc::kBadConfig, path + ": " + std::strerror(errno));
    refill();
    if (zip_.avail_in >= 2 && in_[0] == 0x1f && in_[1] == 0x8b) {
      gzip_ = true;
      WEFT_CHECK(inflateInit2(&zip_, 16 + MAX_WBITS) == Z_OK, "zlib cannot be initialized");
    } else if (path.ends_with(".gz") || zip_.avail_in < 4 || in_[0] != 0 || in_[1] != 0) {
      const std::string_view head(reinterpret_cast<const char*>(in_.data()), zip_.avail_in);
      if (const auto kind = wrong_kind(head)) throw Error(Errc::kCorrupt, path + " is " + *kind);
      fail(0, path.ends_with(".gz") ? "not a gzip file" : "neither gzip nor IDX");
    }
  }
  ~IdxFile() {
    if (gzip_) inflateEnd(&zip_);
  }
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  // The most bytes that this file can contain.
  std::int64_t max_content() const { return gzip_ ? file_bytes_ * kMaxDeflateRatio : file_bytes_; }

  void read(std::uint8_t* out, std::int64_t bytes) {
    const std::int64_t got = read_some(out, bytes);
    if (got < bytes)
      fail(consumed_, "truncated: " + std::to_string(bytes - got) + " bytes are missing");
  }

  void expect_end() {
    std::uint8_t extra;
    if (read_some(&extra, 1) != 0)
      fail(consumed_, "has bytes after the data that its header describes");
    if (gzip_ && !ended_) fail(consumed_, "truncated: gzip's checksum is missing");
    if (zip_.avail_in > 0 || refill())
      fail(consumed_, "has bytes after the end of the gzip stream");
  }

  // `offset` counts bytes of the inflated content.
  [[noreturn]] void fail(std::int64_t offset, const std::string& what) const {
    throw Error(Errc::kCorrupt, path_ + ": offset " + std::to_string(offset) + ": " + what);
  }
  std::int64_t offset() const { return consumed_; }

 private:
  bool refill() {
    zip_.next_in = in_.data();
    zip_.avail_in = static_cast<uInt>(std::fread(in_.data(), 1, in_.size(), file_.get()));
    if (zip_.avail_in == 0 && std::ferror(file_.get()))
      throw Error(Errc::kUnavailable, path_ + ": " + std::strerror(errno));
    return zip_.avail_in > 0;
  }

  std::int64_t read_some(std::uint8_t* out, std::int64_t bytes) {
    std::int64_t done = 0;
    while (done < bytes && !ended_ && (zip_.avail_in > 0 || refill())) {
      const auto room = static_cast<uInt>(std::min<std::int64_t>(bytes - done, 1 << 30));
      const std::int64_t got = gzip_ ? inflate_into(out + done, room) : copy_into(out + done, room);
      done += got;
      consumed_ += got;
    }
    return done;
  }

  std::int64_t inflate_into(std::uint8_t* out, uInt room) {
    zip_.next_out = out;
    zip_.avail_out = room;
    const int code = inflate(&zip_, Z_NO_FLUSH);
    const std::int64_t got = room - zip_.avail_out;
    if (code == Z_STREAM_END) ended_ = true;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      fail(consumed_ + got, std::string("damaged gzip data: ") + (zip_.msg ? zip_.msg : "unknown"));
    }
    return got;
  }

  std::int64_t copy_into(std::uint8_t* out, uInt room) {
    const uInt got = std::min(room, zip_.avail_in);
    std::memcpy(out, zip_.next_in, got);
    zip_.next_in += got;
    zip_.avail_in -= got;
    return got;
  }

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::int64_t file_bytes_ = 0;
  std::int64_t consumed_ = 0;  // Bytes of content read so far.
  bool gzip_ = false;
  bool ended_ = false;
  z_stream zip_{};
  std::array<std::uint8_t, 1 << 16> in_;
};

std::int64_t read_u32(IdxFile& source) {
  std::uint8_t b[4];
  source.read(b, 4);
  return std::int64_t{b[0]} << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

// Returns the path of the file, with or without .gz. The error says how to get the data.
std::string find_file(const std::string& dir, const std::string& name) {
  for (const std::string& path : {dir + "/" + name + ".gz", dir + "/" + name}) {
    if (std::filesystem::exists(path)) return path;
  }
  throw Error(
      Errc::kBadConfig,
      "data.dir: no " + name + ".gz in " + dir +
          "; install it (apt-get install dataset-fashion-mnist), or --set data.dir=FOLDER, or "
          "--set data.name=shapes, which needs no files");
}

}  // namespace

IdxArray read_idx(const std::string& path, IdxLimits limits) {
  IdxFile source(path);
  const std::int64_t magic = read_u32(source);
  const std::int64_t type = magic >> 8, dims = magic & 0xff;
  if (type != 0x08 || dims < 1 || dims > kMaxDims) {
    source.fail(0, "IDX magic " + std::to_string(magic) +
                       " is not supported; it must be 2049 to 2052: bytes in 1 to 4 dimensions");
  }
  IdxArray array;
  std::int64_t total = 1;
  for (std::int64_t d = 0; d < dims; ++d) {
    const std::int64_t size = read_u32(source);
    // total <= max_bytes and size < 2^32, so the product is tested without overflow.
    if (size > 0 && total > limits.max_bytes / size) {
      source.fail(source.offset() - 4, "the header gives more than the limit of " +
                                           std::to_string(limits.max_bytes) + " bytes");
    }
    total *= size;
    array.shape.push_back(size);
  }
  if (total > source.max_content()) {
    source.fail(source.offset(), "the header gives " + std::to_string(total) +
                                     " bytes, more than a file of this length can hold");
  }
  array.values.resize(static_cast<std::size_t>(total));
  source.read(array.values.data(), total);
  source.expect_end();
  return array;
}

namespace {

struct PartFiles {
  std::string images, labels;
};

PartFiles files_of(const std::string& dir, Part part) {
  const std::string folder = dir.empty() ? kDebianFolder : dir;
  const std::string stem = part == Part::kTrain ? "train" : "t10k";
  return {find_file(folder, stem + "-images-idx3-ubyte"),
          find_file(folder, stem + "-labels-idx1-ubyte")};
}

}  // namespace

void check_fashion_mnist(const std::string& dir) {
  for (const Part part : {Part::kTrain, Part::kTest}) files_of(dir, part);
}

ImageSet load_fashion_mnist(const std::string& dir, Part part) {
  const auto [image_file, label_file] = files_of(dir, part);
  IdxArray images = read_idx(image_file);
  IdxArray labels = read_idx(label_file);
  if (images.shape.size() != 3)
    throw Error(Errc::kCorrupt, image_file + ": offset 3: expected 3 dimensions (magic 2051)");
  if (labels.shape.size() != 1)
    throw Error(Errc::kCorrupt, label_file + ": offset 3: expected 1 dimension (magic 2049)");
  if (images.shape[0] != labels.shape[0] || images.shape[0] == 0) {
    throw Error(Errc::kCorrupt, label_file + ": " + std::to_string(labels.shape[0]) +
                                    " labels for " + std::to_string(images.shape[0]) +
                                    " images in " + image_file);
  }
  constexpr std::int64_t kClasses = 10;
  for (std::size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] >= kClasses) {
      throw Error(Errc::kCorrupt, label_file + ": offset " + std::to_string(8 + i) + ": label " +
                                      std::to_string(labels.values[i]) + " is not 0 to 9");
    }
  }
  return {.channels = 1,
          .height = images.shape[1],
          .width = images.shape[2],
          .num_classes = kClasses,
          .pixels = std::move(images.values),
          .labels = std::move(labels.values)};
}

}  // namespace weft::data
