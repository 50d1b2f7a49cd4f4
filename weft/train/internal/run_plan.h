// The plan of a run: chosen at its start, again for another number of ranks or other speeds, and
// compared with what was measured at its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/planned_layout.h"
#include "weft/train/internal/planner.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

// What a run has measured: the same on all ranks.
struct MeasuredRun {
  double seconds = 0;  // Median of its steps, without the first ones. 0: too few steps.
  double memory = 0;   // Peak bytes of a process (observe::memory_share()), the mean. 0: unknown.
  double traffic = 0;  // Bytes of a step that a rank sends, or reads in others' memory: the mean.
  bool has_traffic = true;  // False: another backend moved data, too.
};

class RunPlan {
 public:
  // `options` and `config` as given: by a recipe, or by a program. Throws Error(kBadConfig) for
  // keys that contradict a planned layout, and if the run needs a planner and the program has none.
  RunPlan(const Options& options, const Config& config, bool is_recipe);

  bool is_on() const { return mode_ != Mode::kNone; }
  bool is_auto() const { return mode_ == Mode::kAuto; }
  // With the chosen layout.
  const Options& options() const { return options_; }
  const Config& config() const { return config_; }
  // Null before begin() and where the run has no plan.
  const PlannedLayout* planned() const { return planned_ ? &*planned_ : nullptr; }

  // Measures and chooses, in some seconds. The values of `task` stay as they are. Collective.
  void begin(const Task& task, const Group& world);
  // For a new group. A rank that has come into the job gets the others' plan. Does nothing unless
  // is_auto(). Throws Error(kUnavailable) if no rank is left that knows a plan. Collective.
  void again(const Group& world);
  // True if other layouts are worth their cost by the model: steps left times what a step gains,
  // against `cost` seconds and those of the trials. Says so on rank 0. Collective.
  bool helps(const Departure& departure, std::int64_t steps_left, double cost, const Group& world);
  // Does some steps with each layout of helps(). Takes the best one if its steps are faster than
  // those before, and says on rank 0 what it does. The values of `task` stay as they are.
  // Collective.
  void try_next(const Task& task, const Group& world);
  // Logs what was measured, beside the prediction if there is one. On rank 0.
  void report(const MeasuredRun& measured) const;

 private:
  enum class Mode { kNone, kAuto, kPredict };
  static Mode mode_of(const Options& options);
  void apply(const PlannedLayout& planned);
  void say(double planning_s) const;
  int first_that_knows(const Group& world) const;

  const Mode mode_;
  const bool is_recipe_;
  const Options given_;
  const Config given_config_;
  Options options_;
  Config config_;
  std::unique_ptr<Planner> planner_;  // Null on ranks that came later.
  std::optional<PlannedLayout> planned_;
  std::vector<PlannedLayout> next_;
  StepParts before_next_;  // A step of the present layout, measured.
};

}  // namespace weft::train::internal
