// SharedBatches: the batches of an epoch, which workers take when they are ready, and what the
// workers have done with them.
//
//   counter  0 1 2 3 4 5 6 7 …     a number for each worker's part of each batch
//   worker 0 0   2   4 5   7       a slow worker takes fewer
//   worker 1   1   3     6
//
// Numbers and sums are in the memory of a host. Nobody meets, except in begin().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weft/comm/group.h"

namespace weft::strategy {

namespace internal {
class SharedMemory;
}

class SharedBatches {
 public:
  // Of one rank, since the object was made. Sums over ranks are those of all workers.
  struct Done {
    double batches = 0;            // counted on one rank of each worker
    double samples = 0, loss = 0;  // this rank's part, summed over samples
    double skipped = 0;            // batches whose gradient was not finite
    double seconds = 0, compute_s = 0, waited_s = 0;
    double sent_bytes = 0, moved_bytes = 0, memory_bytes = 0;
    double exchanges = 0, staleness = 0, dropped = 0;  // of the rule (Rule::staleness())

    Done& operator+=(const Done& other);
    Done& operator-=(const Done& other);
  };
  // Batches in a row whose loss was not finite.
  struct NotFinite {
    std::int64_t batches = 0, first_step = 0;
    int rank = -1;
  };

  // `ranks`: all ranks of all workers; `worker`: that of this rank, of `workers`; `is_first`: this
  // is the first rank of its worker. Collective. Throws Error(kBadConfig) if the ranks are not on
  // one host.
  SharedBatches(const Group& ranks, int worker, int workers, bool is_first);
  ~SharedBatches();
  SharedBatches(const SharedBatches&) = delete;
  SharedBatches& operator=(const SharedBatches&) = delete;

  int workers() const { return workers_; }
  // Gives out the numbers [0, count) from now on. Call it while no rank takes. Collective. Throws
  // Error(kInvalidArgument) for 2^31 numbers or more.
  void begin(std::int64_t count);
  // The next number; nullopt if none is left. All ranks of a worker call it, and get the same. Any
  // one thread at a time. Waits for the first rank of the worker only. Throws as Group's operations
  // do.
  std::optional<std::int64_t> take();
  // Gives out no numbers beyond those that complete a batch of all workers.
  void close();
  // The end of the numbers: that of begin(), or an earlier one after close().
  std::int64_t end() const;

  // Adds to what this rank has done. memory_bytes replaces.
  void add(const Done& done);
  // By rank.
  std::vector<Done> done() const;
  // Adds a batch whose loss is finite, or is not. Returns the batches in a row that are not.
  std::int64_t add_finite(bool is_finite, std::int64_t step);
  NotFinite not_finite() const;

 private:
  struct Counter;
  struct OfRank;
  struct Draws;

  const int worker_, workers_;
  const bool is_first_;
  const std::unique_ptr<internal::SharedMemory> memory_;
  Counter* counter_ = nullptr;
  OfRank* of_ranks_ = nullptr;  // by rank
  Draws* draws_ = nullptr;      // by worker
  std::uint32_t taken_ = 0;     // calls of take() since begin()
  bool ended_ = false;          // none was left
};

}  // namespace weft::strategy
