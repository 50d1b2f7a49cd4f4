// Zeroed memory in a file that has no name: the kernel writes it out when memory is short, and
// takes it back when the process ends, however it ends.
#pragma once

#include <cstddef>
#include <filesystem>

namespace weft::parallel::internal {

class MappedFile {
 public:
  // Throws Error(kUnavailable) where the folder or the disk does not allow it, naming the folder.
  MappedFile(const std::filesystem::path& folder, std::size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace weft::parallel::internal
