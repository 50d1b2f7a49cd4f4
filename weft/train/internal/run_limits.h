// Where a run ends: its last step and epoch, a request to stop, another number of ranks, another
// plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weft/train/internal/run_count.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class RunLimits {
 public:
  // Both must outlive it. `at`: where the run is.
  RunLimits(const Options& options, const RunCount& at) : options_(options), at_(at) {}

  bool has_all_steps() const { return options_.max_steps > 0 && at_.step >= options_.max_steps; }
  bool has_all_epochs() const { return at_.epoch >= options_.epochs; }
  bool is_complete() const { return has_all_epochs() || has_all_steps(); }
  // Batches to the end, with `per_epoch` batches in each epoch after this one, if steps go on to
  // have as many batches as now.
  std::int64_t batches_left(std::int64_t per_epoch) const {
    if (is_complete()) return 0;
    const std::int64_t left =
        at_.epoch_steps - at_.in_epoch + (options_.epochs - at_.epoch - 1) * per_epoch;
    return options_.max_steps > 0 ? std::min(left, (options_.max_steps - at_.step) * at_.passes)
                                  : left;
  }
  // Steps that these batches take.
  std::int64_t steps_left(std::int64_t per_epoch) const {
    return (batches_left(per_epoch) + at_.passes - 1) / at_.passes;
  }
  // Batches of the whole run, as the progress line counts them.
  std::int64_t batches(std::int64_t per_epoch) const {
    return at_.batches(per_epoch) + batches_left(per_epoch);
  }

  // What all ranks agreed on: whether the run stops, and the number of ranks to which the job
  // changes; 0: none.
  void agree(bool stop, int ranks) {
    stop_ = stop;
    resize_ = ranks;
  }
  void change_plan(bool changes) { changes_plan_ = changes; }
  int resize() const { return resize_; }
  bool changes_plan() const { return changes_plan_; }
  // Training goes on with other ranks, or by another plan.
  bool pauses() const { return resize_ != 0 || changes_plan_; }
  bool stops() const { return stop_; }
  // A request to stop ends the run before its end.
  bool is_cut() const { return stop_ && !is_complete(); }

 private:
  const Options& options_;
  const RunCount& at_;
  bool stop_ = false;
  int resize_ = 0;
  bool changes_plan_ = false;
};

}  // namespace weft::train::internal
