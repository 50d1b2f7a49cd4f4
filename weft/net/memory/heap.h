// A caching allocator over shared memory: the other ranks of the host can read its blocks in place.
//
// Blocks are 64-byte aligned. Up to 32 KiB they belong to size classes (64-byte steps up to 1 KiB,
// then eight classes per doubling), which are cached, also for each thread. Larger blocks are whole
// pages. A new one takes the lowest address where it fits. A freed one is merged with its free
// neighbors at once, so blocks of many sizes leave small gaps. The size of the region limits
// the growth: beyond it, allocate() returns nullptr, and the caller uses ordinary memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace weft::net {

struct HeapStats {
  std::uint64_t live_bytes = 0;       // bytes in use, rounded to classes and pages
  std::uint64_t peak_bytes = 0;       // the highest live_bytes
  std::uint64_t footprint_bytes = 0;  // memory taken from the system: live, cached and free
  // End of the part of the region that is in use. Below it, trim() may have given memory back.
  std::uint64_t end_bytes = 0;
  std::uint64_t limit_bytes = 0;  // the region
  std::uint64_t huge_bytes = 0;   // bytes of the footprint on huge pages
  std::uint64_t allocations = 0;
  std::uint64_t reused = 0;   // allocations that took no new memory from the system
  std::uint64_t refused = 0;  // allocations that did not fit the limit
};

class Heap {
 public:
  // `limit_bytes` is address space, not memory. Throws Error(kUnavailable) if the system provides
  // no shared memory.
  explicit Heap(std::size_t limit_bytes);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Any thread. nullptr when the limit is reached or after a fork (the child must not share its
  // parent's heap).
  void* allocate(std::size_t bytes) noexcept;
  // Any thread. `pointer` came from allocate() of this heap.
  void deallocate(void* pointer) noexcept;

  // True if `pointer` is in this heap's memory.
  bool contains(const void* pointer) const noexcept;
  // Offset from the heap's start. A peer adds it to the address of its own mapping of this heap.
  std::uint64_t offset(const void* pointer) const noexcept;

  int fd() const noexcept;
  std::size_t size() const noexcept;
  std::byte* data() const noexcept;
  HeapStats stats() const;
  // For pthread_atfork. Between the two calls, other threads wait, so that a child never inherits a
  // lock that is held. In the child the memory belongs to the parent: from then on allocate()
  // returns nullptr and deallocate() does nothing.
  void before_fork() noexcept;
  void after_fork(bool in_child) noexcept;
  // True in a forked child: the memory is the parent's, and allocate() returns nullptr.
  bool is_of_parent() const noexcept;
  // Moves the whole heap to new shared memory, at the same addresses. Peers keep their mapping of
  // the old memory, and their writes to it are never seen here. Used to exclude a peer that may
  // still be writing. Copies end_bytes, and needs as much additional memory until the last
  // peer has unmapped the old memory. Meanwhile, writes of other threads to blocks wait; a system
  // call that writes to one may fail with EFAULT. Throws Error(kUnavailable) without changes if
  // there is no memory for both.
  void renew();

  // Gives the memory of blocks that are cached or free back to the system, in pieces of 2 MiB and
  // more. Small blocks stay in their caches. Any thread.
  void trim();

  // Size of the block for a request of `bytes`.
  static std::size_t rounded(std::size_t bytes) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The process's own heap, made at the first call (limit: 3/4 of the machine's memory, or
// WEFT_HEAP_MB) and never destroyed. nullptr if the system provides no shared memory
// (process_heap_error() has the reason) or if WEFT_HEAP_MB=0.
Heap* process_heap();
const char* process_heap_error();

// From now on, a child of fork() gets a private copy of the process's heap at the same address,
// like all other memory: neither process sees the writes of the other. fork() returns in the parent
// when the child has its copy (about 0.3 s for each GiB in use). A child that cannot have one, for
// lack of memory or descriptors, says so in one line and exits with status 70. Call it once, after
// process_heap() has made the heap. posix_spawn(), system() and popen() copy nothing.
void copy_heap_on_fork();

}  // namespace weft::net
