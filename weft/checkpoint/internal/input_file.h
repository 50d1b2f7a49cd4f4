// Reading a safetensors file or a checkpoint's text that nobody vouches for, with its checksums
// where there are some.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/checkpoint/internal/header.h"
#include "weft/checkpoint/internal/manifest.h"

namespace weft::checkpoint::internal {

// A file opened once. It must keep the size that it has then. Any thread, several at once.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  // The same, whose every chunk that is read must have its checksum. Throws Error(kCorrupt) where
  // the size is another one.
  InputFile(const std::string& path, FileSums sums, std::int64_t chunk_bytes);

  std::int64_t bytes() const { return bytes_; }
  // With pread, never mapped: a file that shrinks is an error, not a signal. Throws Error(kCorrupt)
  // naming file and offset.
  void read(void* out, std::int64_t bytes, std::int64_t offset) const;
  // Chunks [begin, end) have their checksums.
  void verify(std::int64_t begin, std::int64_t end) const;
  std::int64_t num_chunks() const { return static_cast<std::int64_t>(sums_.chunks.size()); }

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void read_raw(void* out, std::int64_t bytes, std::int64_t offset) const;
  void check(const void* data, std::int64_t chunk) const;
  std::int64_t size_of_chunk(std::int64_t chunk) const;

  std::string path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
  FileSums sums_;
  std::int64_t chunk_bytes_ = 0;  // 0: without checksums
  mutable std::mutex mutex_;
  mutable std::vector<char> chunk_;     // the chunk read last, under the mutex
  mutable std::int64_t chunk_at_ = -1;  // its number
};

// A safetensors file whose header has been read and checked.
struct TensorFileMap {
  explicit TensorFileMap(std::unique_ptr<InputFile> file, const std::string& path);

  std::unique_ptr<InputFile> in;
  std::int64_t data_begin = 0;
  Header header;
};

}  // namespace weft::checkpoint::internal
