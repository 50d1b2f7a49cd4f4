// A new file being written, with the checksum and size of what was written, not of what the disk made of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/base/file.h"

namespace weft::checkpoint::internal {

class FileWriter {
 public:
  // Makes the file; one that exists is an error.
  explicit FileWriter(std::string path);

  void write(std::string_view bytes);
  // Flushes to the disk and closes.
  void finish();

  const std::string& path() const { return path_; }
  std::uint32_t crc() const { return crc_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint32_t crc_ = 0;
  std::int64_t bytes_ = 0;
};

// Makes the names in a folder survive a power cut.
void flush_directory(const std::string& path);

// The folder a path is in; "." for a bare name.
std::string parent_of(const std::string& path);

}  // namespace weft::checkpoint::internal
