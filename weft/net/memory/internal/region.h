// A piece of anonymous memory that other processes can map: a memfd and its mapping. A SIGKILL
// leaks nothing.
//
// The size is address space; pages cost memory only once they are touched. MADV_COLLAPSE makes huge
// pages for shared memory even if the system's shmem_enabled is "never". It costs one copy, so it
// is used for long-lived ranges.
#pragma once

#include <cstddef>

namespace weft::net {

class Region {
 public:
  Region() = default;
  // Makes new shared memory of `bytes` (rounded up to 2 MiB). Throws Error(kUnavailable) if the
  // system provides none.
  static Region create(std::size_t bytes);
  // Maps a region of another process and takes ownership of the descriptor. Throws Error(kCorrupt)
  // if it is shorter than `bytes`.
  static Region attach(int fd, std::size_t bytes);

  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  int fd() const noexcept { return fd_; }
  bool contains(const void* pointer) const noexcept {
    const auto* p = static_cast<const std::byte*>(pointer);
    return p >= data_ && p < data_ + size_;
  }

  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  // Populates [offset, offset + bytes), unused whole huge pages, with huge pages. Returns false if
  // the system has none; the memory works without them.
  bool collapse(std::size_t offset, std::size_t bytes) const noexcept;

  // Gives the pages of [offset, offset + bytes) back to the system; they are zero when they are
  // touched again, in all mappings. Whole pages. Returns false, with nothing changed, if the system
  // cannot do it.
  bool release(std::size_t offset, std::size_t bytes) const noexcept;

  // Moves the first `used` bytes to new shared memory, at the same addresses, and drops the rest.
  // Other processes keep their mapping of the old memory; their writes to it are never seen here.
  // Threads of this process that write meanwhile wait, but a system call that writes may fail with
  // EFAULT. Throws Error(kUnavailable) without changes if there is no memory for both.
  void renew(std::size_t used);

 private:
  static Region map(int fd, std::size_t bytes);
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace weft::net
