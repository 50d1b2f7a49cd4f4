// Reads untrusted safetensors files and text files of checkpoints, and verifies their checksums if
// there are any.
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

// An open file. Its size must not change. Any thread may use it, several at once.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  // Opens a file with checksums: each chunk is verified when it is read. Throws Error(kCorrupt) if
  // the file has another size.
  InputFile(const std::string& path, FileSums sums, std::int64_t chunk_bytes);

  std::int64_t bytes() const { return bytes_; }
  // Uses pread rather than a mapping, so that a file that shrinks causes an error and not a signal.
  // Throws Error(kCorrupt) with file and offset.
  void read(void* out, std::int64_t bytes, std::int64_t offset) const;
  // Verifies the checksums of chunks [begin, end).
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
  mutable std::vector<char> chunk_;     // the last chunk read; guarded by the mutex
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
