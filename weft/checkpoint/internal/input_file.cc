#include "weft/checkpoint/internal/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/kind/file_kind.h"

namespace weft::checkpoint::internal {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

InputFile::InputFile(const std::string& path)
    // A pipe that nobody writes to would block here.
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (!fd_) fail_io("cannot open", path_);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail_io("cannot read", path_);
  if (!S_ISREG(status.st_mode)) fail("is not a regular file");
  bytes_ = status.st_size;
}

InputFile::InputFile(const std::string& path, FileSums sums, std::int64_t chunk_bytes)
    : InputFile(path) {
  sums_ = std::move(sums);
  if (bytes_ != sums_.bytes)
    fail("has " + std::to_string(bytes_) + " bytes, not " + std::to_string(sums_.bytes));
  chunk_bytes_ = chunk_bytes == 0 ? std::max<std::int64_t>(1, bytes_) : chunk_bytes;
}

void InputFile::fail(const std::string& what) const {
  throw Error(Errc::kCorrupt, path_ + ": " + what);
}

void InputFile::read_raw(void* out, std::int64_t bytes, std::int64_t offset) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_.get(), to, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read", path_);
    if (got == 0) fail("offset " + std::to_string(offset) + ": the file shrank while it was read");
    to += got;
    bytes -= got;
    offset += got;
  }
}

std::int64_t InputFile::size_of_chunk(std::int64_t chunk) const {
  return std::min(chunk_bytes_, bytes_ - chunk * chunk_bytes_);
}

void InputFile::check(const void* data, std::int64_t chunk) const {
  if (crc32c(data, static_cast<std::size_t>(size_of_chunk(chunk))) ==
      sums_.chunks[static_cast<std::size_t>(chunk)])
    return;
  fail("its checksum at offset " + std::to_string(chunk * chunk_bytes_) +
       " differs from the manifest's");
}

void InputFile::read(void* out, std::int64_t bytes, std::int64_t offset) const {
  // In version 1 a file is one chunk of any size, so verify() streams it.
  if (chunk_bytes_ == 0 || chunk_bytes_ > kChunkBytes) return read_raw(out, bytes, offset);
  if (offset < 0 || bytes > bytes_ - offset)
    fail("offset " + std::to_string(offset) + ": the file ends before");
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const std::int64_t chunk = offset / chunk_bytes_, at = offset % chunk_bytes_,
                       size = size_of_chunk(chunk);
    const std::int64_t count = std::min(bytes, size - at);
    if (count == size) {
      read_raw(to, size, offset);
      check(to, chunk);
    } else {
      const std::scoped_lock lock(mutex_);
      if (chunk_at_ != chunk) {
        chunk_at_ = -1;
        chunk_.resize(static_cast<std::size_t>(size));
        read_raw(chunk_.data(), size, chunk * chunk_bytes_);
        check(chunk_.data(), chunk);
        chunk_at_ = chunk;
      }
      std::memcpy(to, chunk_.data() + at, static_cast<std::size_t>(count));
    }
    to += count;
    bytes -= count;
    offset += count;
  }
}

void InputFile::verify(std::int64_t begin, std::int64_t end) const {
  std::vector<char> part(
      static_cast<std::size_t>(std::min(kChunkBytes, std::max<std::int64_t>(1, bytes_))));
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    std::uint32_t crc = 0;
    for (std::int64_t at = 0, size = size_of_chunk(chunk); at < size;) {
      const std::int64_t count = std::min(size - at, static_cast<std::int64_t>(part.size()));
      read_raw(part.data(), count, chunk * chunk_bytes_ + at);
      crc = crc32c(part.data(), static_cast<std::size_t>(count), crc);
      at += count;
    }
    if (crc != sums_.chunks[static_cast<std::size_t>(chunk)]) {
      fail("its checksum at offset " + std::to_string(chunk * chunk_bytes_) +
           " differs from the manifest's");
    }
  }
}

namespace {

// Throws if the first bytes of a file without a valid header show what it is.
void refuse_other_kinds(const InputFile& in, const std::string& path) {
  constexpr std::int64_t kMost = 64;
  std::string head(static_cast<std::size_t>(std::min(kMost, in.bytes())), '\0');
  in.read(head.data(), static_cast<std::int64_t>(head.size()), 0);
  if (const auto kind = wrong_kind(head)) throw Error(Errc::kCorrupt, path + " is " + *kind);
  // The length of a header ends with zero bytes.
  const auto is_text = [](unsigned char c) { return c >= 0x20 || (c >= '\t' && c <= '\r'); };
  if (head.empty() || !std::all_of(head.begin(), head.end(), is_text) ||
      doubt_of_text(head, in.bytes() <= kMost))
    return;
  throw Error(Errc::kCorrupt, path + " is text, not a safetensors file; it begins with \"" +
                                  head.substr(0, head.find_first_of("\r\n")) + "\"");
}

}  // namespace

TensorFileMap::TensorFileMap(std::unique_ptr<InputFile> file, const std::string& path)
    : in(std::move(file)) {
  if (in->bytes() < kLengthBytes) {
    refuse_other_kinds(*in, path);
    in->fail("truncated: " + std::to_string(in->bytes()) +
             " bytes, too few for a safetensors file");
  }
  std::uint64_t length = 0;
  in->read(&length, kLengthBytes, 0);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes) ||
      length > static_cast<std::uint64_t>(in->bytes() - kLengthBytes)) {
    refuse_other_kinds(*in, path);
    in->fail("offset 0: gives the header " + std::to_string(length) +
             " bytes, too many for a file of " + std::to_string(in->bytes()) + " bytes");
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  in->read(text.data(), static_cast<std::int64_t>(length), kLengthBytes);
  data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  header = parse_header(text, in->bytes() - data_begin, path);
}

}  // namespace weft::checkpoint::internal
