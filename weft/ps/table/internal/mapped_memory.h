// Memory that grows in chunks and never moves: anonymous, or of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/base/file.h"

namespace weft::ps::internal {

class MappedMemory {
 public:
  // Bytes of a chunk. The memory takes physical pages when it is written.
  static constexpr std::size_t kChunk = std::size_t{32} << 20;

  // Without a folder: anonymous memory, on huge pages where the system has them. With one: a file
  // in the folder that no name refers to, so that nothing is left when the process ends. Throws
  // Error(kInvalidArgument) if the folder does not exist or cannot be written.
  explicit MappedMemory(const std::string& folder);
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept = delete;
  MappedMemory& operator=(MappedMemory&&) = delete;

  // Adds a chunk of zeros, aligned to 2 MiB in anonymous memory, else to a page. Throws
  // Error(kUnavailable) if the system has no memory, and if the disk is full; nothing changes then.
  std::byte* add();

 private:
  std::byte* map_anonymous();
  std::byte* map_file();

  std::string folder_;
  UniqueFd file_;
  std::vector<std::byte*> chunks_;
};

}  // namespace weft::ps::internal
