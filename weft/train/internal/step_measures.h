// What a run measures of its steps, and whether they still take as long as planned.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/run_plan.h"
#include "weft/train/internal/step_log.h"

namespace weft::train::internal {

class StepMeasures {
 public:
  explicit StepMeasures(Group world) : world_(std::move(world)) {}

  // Watches the times of the steps from now on.
  void watch(const StepParts& expected) { watch_.emplace(expected); }
  void add(const StepLog::Step& step);
  // Once enough steps are done, compares the times of all ranks with the expected ones. nullopt if
  // they take as long. After an answer, the measured times are the expected ones. All ranks get the
  // same answer. Collective.
  std::optional<Departure> look();
  // Seconds of a step that are expected; 0 without watch().
  double expected() const { return watch_ ? watch_->expected().step : 0; }
  // Of all steps so far. The same on all ranks. Collective.
  MeasuredRun total() const;

 private:
  const Group world_;
  std::vector<float> seconds_;  // of the last steps
  std::int64_t count_ = 0;
  double bytes_ = 0;
  std::optional<PlanWatch> watch_;
  RankParts window_;  // sums of this rank
  std::int64_t window_steps_ = 0;
};

}  // namespace weft::train::internal
