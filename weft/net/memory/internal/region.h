// A piece of anonymous memory that other processes can map: a memfd and its mapping. A SIGKILL
// leaks nothing.
//
// The size is address space; pages cost memory only once they are touched. Huge pages:
// MADV_COLLAPSE makes them for shared memory even where the system's shmem_enabled says "never";
// the cost is one copy, so it is asked for ranges that stay.
#pragma once

#include <cstddef>

namespace weft::net {

class Region {
 public:
  Region() = default;
  // Makes new shared memory of `bytes` (rounded up to 2 MiB). Throws Error(kUnavailable) where the
  // system gives none.
  static Region create(std::size_t bytes);
  // Maps a region that another process made; takes the descriptor over. Throws Error(kCorrupt)
  // where it is shorter than `bytes`.
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
  // Populates [offset, offset + bytes), whole huge pages that nobody has used yet, with huge pages
  // where the system has them; false where it has not (the memory works all the same).
  bool collapse(std::size_t offset, std::size_t bytes) const noexcept;

  // Moves the first `used` bytes to new shared memory, at the same addresses, and forgets the rest.
  // Who has mapped the old memory keeps it; what is written there is never seen here. Threads of
  // this process that write meanwhile wait, but a system call that writes may fail with EFAULT.
  // Throws Error(kUnavailable), with nothing changed, where the system has no memory for both.
  void renew(std::size_t used);

 private:
  static Region map(int fd, std::size_t bytes);
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace weft::net
