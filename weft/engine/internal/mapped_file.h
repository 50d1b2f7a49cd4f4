// Zeroed memory in a file without a name. The kernel writes it to disk when memory is short, and
// removes it when the process ends for any reason.
#pragma once

#include <cstddef>
#include <filesystem>

namespace weft::engine::internal {

class MappedFile {
 public:
  // Throws Error(kUnavailable) with the name of the folder if the folder or the disk does not allow
  // it.
  MappedFile(const std::filesystem::path& folder, std::size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace weft::engine::internal
