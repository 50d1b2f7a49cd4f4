// A vector in the memory of a host that all workers change, without a meeting.
//
// Each worker holds the lock of one chunk at a time while it reads and writes it, so no change is
// lost. Workers begin at different chunks. A worker that dies with a lock ends the wait of the
// others with kPeerLost.
//
// Clocks bound the staleness (stale synchronous parallel: Ho and others 2013): with bound s, a
// worker waits until the slowest one is at most s exchanges behind. With s = 0, every worker reads
// what exactly the same exchanges of all workers have made.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "weft/comm/group.h"

namespace weft::strategy::internal {

class Center {
 public:
  // A vector of zeros, like `like` [count]. `staleness`: bound of the clocks; below 0: none.
  // Collective. Throws Error(kBadConfig) if the workers are not on one host.
  Center(Group workers, const at::Tensor& like, std::int64_t staleness);

  // The whole vector. Read and write it only while no worker exchanges.
  const at::Tensor& values() const { return values_; }
  void meet() const { workers_.barrier(); }

  // Calls change(mine, center) for each chunk, with the parts of `vector` and of the center. If
  // staleness is bounded, it then waits for the slowest worker, and calls `read`, if it is given,
  // in the same way.
  using Change = std::function<void(at::Tensor mine, at::Tensor center)>;
  void exchange(const at::Tensor& vector, const Change& change, const Change& read = nullptr);
  // Begins to count from 0. Collective.
  void reset_clocks();

 private:
  struct Clock;
  struct Lock;
  using Count = std::atomic<std::int64_t> Clock::*;
  std::int64_t chunks() const;
  void lock(Lock& lock);
  void notify() const;
  void for_each_chunk(const at::Tensor& vector, const Change& change);
  void wait_for_all(Count count);
  void advance(Count count);

  const Group workers_;
  const std::int64_t staleness_;
  at::Tensor block_;         // of a worker that is alone; several share the memory of their host
  Clock* clocks_ = nullptr;  // by worker
  Lock* locks_ = nullptr;    // by chunk
  at::Tensor values_;
};

}  // namespace weft::strategy::internal
