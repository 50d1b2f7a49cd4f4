// A small file system in memory that can be filled up: for run folders. Needs root, and a mount
// namespace of this process's own (private_mounts()).
#pragma once

#include <cstdint>
#include <string>

namespace weft::chaos::internal {

// Gives this process mounts of its own, and an empty /dev/shm. Call it before any thread is
// started. False: not permitted (it needs root), and nothing has changed.
bool private_mounts();

class FullDisk {
 public:
  // Mounts it at `folder`, which exists. Throws Error(kUnavailable).
  FullDisk(std::string folder, std::uint64_t bytes);
  ~FullDisk();
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

  // Takes all free space. Returns whether a write then failed for lack of space.
  bool fill();
  void free();

 private:
  const std::string folder_, filler_;
};

}  // namespace weft::chaos::internal
