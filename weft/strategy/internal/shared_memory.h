// Memory of a host that all workers read and write, and locks in it.
//
// A worker that dies while it holds a lock ends the wait of the others with kPeerLost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "weft/comm/group.h"

namespace weft::strategy::internal {

class SharedMemory {
 public:
  // In shared memory. Alone in its cache line.
  struct alignas(64) Lock {
    std::atomic<std::int32_t> holder;  // the worker's number + 1; 0: free
  };
  // Holds a lock. Waits for it, as wait() does.
  class Hold {
   public:
    Hold(const SharedMemory& memory, Lock& lock);
    ~Hold() { lock_.holder.store(0, std::memory_order_release); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Lock& lock_;
  };

  // A block of zeros. Collective. Throws Error(kBadConfig) if the workers are not on one host.
  SharedMemory(Group workers, std::size_t bytes);

  const Group& workers() const { return workers_; }
  std::byte* data() const { return data_; }
  // Wakes the workers that wait.
  void notify() const;
  // Returns when ready() is true. `suspect` returns the worker that is awaited. Throws as Group's
  // operations do.
  void wait(const std::function<bool()>& ready, const std::function<int()>& suspect,
            const char* operation) const;
  // Counts bytes that this worker has read from others or written for them (Group::traffic()).
  void count_moved(std::size_t bytes) const;

 private:
  const Group workers_;
  std::byte* data_ = nullptr;
  at::Tensor alone_;  // the block of a worker that is alone
};

}  // namespace weft::strategy::internal
