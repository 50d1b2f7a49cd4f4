// Requests of this rank to the others: to stop, or to change the number of ranks. Knows the step
// after which the ranks agree on them.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/elastic/recovery.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class RunRequests {
 public:
  // `options` must outlive it. `resizes`: the number of ranks may change.
  RunRequests(const Options& options, const Group& world, bool resizes)
      : options_(options), rank_(world.rank()), ranks_(world.size()), resizes_(resizes) {}

  // Training begins after `step`.
  void start(std::int64_t step);
  // The ranks agree after `step`. A step takes `step_s` seconds.
  void looked(std::int64_t step, double step_s);
  bool has_looked(std::int64_t step) const { return looked_step_ == step; }
  bool is_due(std::int64_t step) const { return step >= next_look_; }

  // Whether this rank wishes to stop. An answer of polls() before counts, whatever should_stop()
  // says now.
  bool take_stop() {
    return std::exchange(stops_, false) || (options_.should_stop && options_.should_stop());
  }
  // The number of ranks that the launcher has asked for; 0: none.
  int ranks() { return launcher_.ranks(); }
  // The number of ranks to which the job changes if rank 0 has asked for `wanted`; 0: none.
  int new_ranks(int wanted) const { return resizes_ && wanted != ranks_ ? wanted : 0; }
  const std::vector<int>& newcomers() const { return launcher_.newcomers(); }
  bool resizes() const { return resizes_; }

  // Asynchronous strategies: batches begin.
  void begin_batches() { polled_at_ = Clock::now(); }
  // True about once a second, and every log_every batches of this rank: polls() is due.
  bool poll_is_due(std::int64_t step);
  // True if this rank wishes to stop, or on rank 0 to change the number of ranks.
  bool polls();

 private:
  using Clock = std::chrono::steady_clock;

  const Options& options_;
  const int rank_, ranks_;
  const bool resizes_;
  std::int64_t looked_step_ = 0;  // of the last look
  std::int64_t next_look_ = 0;    // step after which the next one is due at the latest
  Clock::time_point polled_at_;
  bool stops_ = false;  // polls() found that this rank wishes to stop
  elastic::SizeRequests launcher_;
};

}  // namespace weft::train::internal
