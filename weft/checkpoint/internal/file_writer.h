// Writes a new file, and computes its size and checksums from the bytes in memory, so that damage
// on the way to the disk is found later.
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
  // Creates the file. Throws if it exists.
  explicit FileWriter(std::string path);

  // Starts the write-back to the disk at once, so that finish() waits only for the last bytes.
  void write(std::string_view bytes);
  // Flushes the file to the disk and closes it.
  FileSums finish();

 private:
  std::string path_;
  UniqueFd fd_;
  FileSums sums_;
  std::uint32_t crc_ = 0;        // of the chunk being filled
  std::int64_t started_at_ = 0;  // bytes whose write-back has started
};

// Writes a new file with this text.
FileSums write_text(const std::string& path, std::string_view text);

// Creates or replaces the file atomically: `body` writes a temporary file, which is then renamed.
// If `body` throws, the temporary file is removed.
void replace_file(const std::string& path, const std::function<void(FileWriter&)>& body);

}  // namespace weft::checkpoint::internal
