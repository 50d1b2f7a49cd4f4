// A new file being written, with the checksums and size of what was written, not of what the disk
// made of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "weft/base/file.h"
#include "weft/checkpoint/internal/manifest.h"

namespace weft::checkpoint::internal {

class FileWriter {
 public:
  // Makes the file; one that exists is an error.
  explicit FileWriter(std::string path);

  // The disk begins to take the bytes as they come, so that finish() waits for the last ones only.
  void write(std::string_view bytes);
  // Flushes to the disk and closes.
  FileSums finish();

 private:
  std::string path_;
  UniqueFd fd_;
  FileSums sums_;
  std::uint32_t crc_ = 0;        // of the chunk that is not full yet
  std::int64_t started_at_ = 0;  // bytes that the disk was told to take
};

// A new file with this text.
FileSums write_text(const std::string& path, std::string_view text);

// Makes or replaces the file at one instant: `body` writes it aside, then it takes its place. If
// `body` throws, nothing is left behind.
void replace_file(const std::string& path, const std::function<void(FileWriter&)>& body);

}  // namespace weft::checkpoint::internal
