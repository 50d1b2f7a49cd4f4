// A caching allocator over shared memory: what one rank allocates here, the other ranks of its host
// can read in place.
//
// Blocks are 64-byte aligned and come back warm: a freed block goes to the cache of its size class
// (64-byte steps up to 1 KiB, then eight classes a doubling, so at most 12.5 % is lost to
// rounding). Small classes have a cache per thread; blocks above 32 KiB are whole pages, which are
// merged and cut again before the heap grows, where caches hold 8 MiB more than half of what is
// handed out. Growth is bounded by the region's size: beyond it allocate() gives nullptr, and the
// caller uses ordinary memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace weft::net {

struct HeapStats {
  std::uint64_t live_bytes = 0;       // handed out, rounded to classes
  std::uint64_t peak_bytes = 0;       // the highest live_bytes
  std::uint64_t footprint_bytes = 0;  // taken from the region so far: live, cached and free
  std::uint64_t limit_bytes = 0;      // the region
  std::uint64_t huge_bytes = 0;       // of the footprint, on huge pages
  std::uint64_t allocations = 0;
  std::uint64_t reused = 0;   // of them, from a cache
  std::uint64_t refused = 0;  // allocations that did not fit the limit
};

class Heap {
 public:
  // `limit_bytes` is address space, not memory. Throws Error(kUnavailable) where the system gives
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

  // True where `pointer` lies in this heap's memory.
  bool contains(const void* pointer) const noexcept;
  // The distance from the heap's start: what a peer adds to its own mapping of this heap.
  std::uint64_t offset(const void* pointer) const noexcept;

  int fd() const noexcept;
  std::size_t size() const noexcept;
  std::byte* data() const noexcept;
  HeapStats stats() const;
  // For a forked child, whose memory this still is its parent's: allocate() gives nullptr from now
  // on, deallocate() does nothing.
  void abandon() noexcept;
  // Moves all of the heap to new shared memory, at the same addresses. Peers that have mapped the
  // old memory keep that, and what they write there is never seen here: for leaving behind a peer
  // that may be in the midst of writing. Copies footprint_bytes, and takes as much more memory
  // until the last peer has let go of the old. Other threads' writes to blocks wait meanwhile; a
  // system call that writes to one may fail with EFAULT. Throws Error(kUnavailable), with nothing
  // changed, where there is no memory for both.
  void renew();

  // What a request of `bytes` really takes.
  static std::size_t rounded(std::size_t bytes) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The process's own heap, made at the first call (limit: 3/4 of the machine's memory, or
// WEFT_HEAP_MB) and never destroyed. nullptr where the system gives no shared memory (the reason is
// kept in process_heap_error()) or WEFT_HEAP_MB=0.
Heap* process_heap();
const char* process_heap_error();

}  // namespace weft::net
