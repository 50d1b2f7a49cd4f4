// SharedBatches: the batches of an epoch, which workers take when they are ready, and what the
// workers have done with them.
//
//   counter  0 1 2 3 4 5 6 7 …     a number for each worker's part of each batch
//   worker 0 0   2   4 5   7       a slow worker takes fewer
//   worker 1   1   3     6
//
// Numbers and sums are in the memory of a host, or, for ranks on several hosts, in the store of the
// job. Nobody meets, except in begin() and meet().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weft/comm/group.h"

namespace weft::store {
class Store;
}

namespace weft::strategy {

class SharedBatches {
 public:
  // Of one rank, since the object was made. Sums over ranks are those of all workers.
  struct Done {
    double batches = 0;            // counted on one rank of each worker
    double samples = 0, loss = 0;  // this rank's part, summed over samples
    double counted = 0;            // samples whose loss is in `loss`: not those of skipped batches
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

  virtual ~SharedBatches() = default;
  SharedBatches(const SharedBatches&) = delete;
  SharedBatches& operator=(const SharedBatches&) = delete;

  virtual int workers() const = 0;
  // Gives out the numbers [0, count) from now on. Call it while no rank takes. Collective. Throws
  // Error(kInvalidArgument) for 2^31 numbers or more.
  virtual void begin(std::int64_t count) = 0;
  // The next number; nullopt if none is left. All ranks of a worker call it, and get the same. Any
  // one thread at a time. Waits for the first rank of the worker only. Throws as Group's operations
  // do, and kPeerLost if the store cannot be reached.
  virtual std::optional<std::int64_t> take() = 0;
  // Gives out no numbers beyond those that complete a batch of all workers.
  virtual void close() = 0;
  // The end of the numbers: that of begin(), or an earlier one after close().
  virtual std::int64_t end() const = 0;
  // Waits for all ranks. done() and not_finite() are then up to date on all of them. Collective.
  virtual void meet() = 0;

  // Adds to what this rank has done. memory_bytes replaces.
  virtual void add(const Done& done) = 0;
  // By rank. On several hosts, what other ranks have done may be half a second old.
  virtual std::vector<Done> done() const = 0;
  // Adds a batch whose loss is finite, or is not. Returns the batches in a row that are not, on
  // several hosts those of this rank.
  virtual std::int64_t add_finite(bool is_finite, std::int64_t step) = 0;
  virtual NotFinite not_finite() const = 0;

 protected:
  SharedBatches() = default;
};

// Where a rank belongs.
struct WorkerRank {
  int worker = 0, workers = 1;
  bool is_first = true;  // the first rank of its worker
};

struct SharedBatchesOptions {
  // On several hosts: most numbers that a worker takes at a time. It takes fewer where few are
  // left. A request of the store takes about 0.1 ms. With a bound on the staleness, 1: the numbers
  // that a worker holds are older than those of the others.
  int most_at_a_time = 4;
  // The store for ranks on several hosts. Null: that of the job (WEFT_STORE).
  std::shared_ptr<store::Store> store = nullptr;
};

// Makes the batches of `ranks`. Null if the ranks are on several hosts, and one of them has no
// store of the job. Collective.
std::unique_ptr<SharedBatches> make_shared_batches(const Group& ranks, const WorkerRank& place,
                                                   const SharedBatchesOptions& options = {});

}  // namespace weft::strategy
