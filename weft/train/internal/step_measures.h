// What a run measures of its steps, and whether they still take as long as planned.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/run_plan.h"
#include "weft/train/internal/step_log.h"

namespace weft::train::internal {

// Called when steps take other times than planned, with the number of steps left. True: training
// goes on with another plan. Collective.
using PlanAnswer = std::function<bool(const Departure&, std::int64_t steps_left)>;

class StepMeasures {
 public:
  explicit StepMeasures(Group world) : world_(std::move(world)) {}

  // Watches the times of the steps from now on.
  void watch(const StepParts& expected, PlanAnswer answer) {
    watch_.emplace(expected);
    answer_ = std::move(answer);
  }
  void add(const StepLog::Step& step);
  // The answer to steps that are slower than planned: divide batches by speed, or change the plan.
  enum class Change { kNone, kBalance, kPlan };
  // Once enough steps are done, compares the times of all ranks with the expected ones, and logs a
  // departure. The measured times are then the expected ones. `saves`: the run has checkpoints;
  // another plan goes on from one. The same on all ranks. Collective.
  Change look(std::int64_t steps_left, bool saves);
  // Measures all steps so far. Collective.
  void finish() { total_ = total(); }
  // The same on all ranks. Empty before finish().
  const MeasuredRun& measured() const { return total_; }

 private:
  std::optional<Departure> departure();
  MeasuredRun total() const;

  const Group world_;
  std::vector<float> seconds_;  // of the last steps
  std::int64_t count_ = 0;
  double bytes_ = 0;
  std::optional<PlanWatch> watch_;
  PlanAnswer answer_;
  RankParts window_;  // sums of this rank
  std::int64_t window_steps_ = 0;
  MeasuredRun total_;
};

}  // namespace weft::train::internal
