// What a run watches: numbers that are not finite, wrong gradients, slow ranks, replicas that
// differ.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/group.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/stragglers.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class RunHealth {
 public:
  // `options` must outlive it.
  RunHealth(const Options& options, Group world) : options_(options), world_(std::move(world)) {}

  // Logs an error when the loss or a gradient becomes NaN or infinite. Returns the error that ends
  // the run when it stays so. The same on all ranks.
  std::optional<Error> watch_numbers(const StepLog::Seen::NotFinite& now);
  // Whether loss and gradients of the last step that watch_numbers() saw are finite.
  bool is_finite() const { return is_finite_; }
  // Call it after each step. `is_bad`: skipped for another reason than the loss scale.
  void count_skipped(Learner& learner, std::int64_t step, bool is_bad);
  // Call it after a skipped step: logs ranks that computed other gradients than their replicas.
  // Returns the error that ends the run when it finds a rank again.
  std::optional<Error> watch_gradients(Learner& learner, std::int64_t step);
  // The ranks that are slow, if these have changed since the last call; empty: no rank is slow any
  // more. The same on all ranks. Asks the launcher to replace this rank if the options say so.
  std::optional<std::vector<int>> watch_stragglers(const StepLog::Seen& seen);
  // Every options.compare_steps steps. Throws Error(kCorrupt) if no majority has a tensor.
  // Collective.
  void compare_replicas(Learner& learner, std::int64_t step) const;

 private:
  const Options& options_;
  const Group world_;
  StragglerWatch stragglers_;
  std::int64_t skipped_in_a_row_ = 0;
  std::map<std::vector<int>, int> found_wrong_;  // how often these ranks were named
  bool is_finite_ = true;
};

}  // namespace weft::train::internal
