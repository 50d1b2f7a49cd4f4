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

#include <cstdint>
#include <functional>

#include "weft/comm/group.h"

namespace weft::strategy::internal {

class Center {
 public:
  // A vector of zeros, like `like` [count]. Collective. Throws Error(kBadConfig) if the workers are
  // not on one host.
  Center(Group workers, const at::Tensor& like);

  // The whole vector. Read and write it only while no worker exchanges.
  const at::Tensor& values() const { return values_; }
  void meet() const { workers_.barrier(); }

  // Calls fn(mine, center), parts of `vector` and of the center, for all chunks.
  using Change = std::function<void(at::Tensor mine, at::Tensor center)>;
  void for_each_chunk(const at::Tensor& vector, const Change& change);

  // Around the two halves of an exchange, where staleness is bounded:
  //   wait_to_push(s) ── push ── pushed() ── wait_to_read(s) ── read ── has_read()
  void wait_to_push(std::int64_t most);
  void pushed();
  void wait_to_read(std::int64_t most);
  void has_read();
  // Begins to count from 0. Collective.
  void reset_clocks();

 private:
  struct Clock;
  struct Lock;
  std::int64_t chunks() const;
  void lock(Lock& lock);
  void notify() const;
  template <class Of>
  void wait_for_all(std::int64_t least, const Of& of);

  const Group workers_;
  at::Tensor block_;         // of a worker that is alone; several share the memory of their host
  Clock* clocks_ = nullptr;  // by worker
  Lock* locks_ = nullptr;    // by chunk
  at::Tensor values_;
};

}  // namespace weft::strategy::internal
