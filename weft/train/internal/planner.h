// Planner: measures the machines of a run, and chooses or predicts its layout: for parallel.plan =
// "auto" and "predict", and Options::mesh = "auto". The folder train/planner has it. A program may
// have none (train/components.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/planned_layout.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

// Of one run. One thread at a time calls it.
class Planner {
 public:
  virtual ~Planner() = default;
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Takes some seconds. `task`: of the run; its values stay as they are. Collective.
  virtual void measure(const Task& task, const Options& options, const Group& world) = 0;
  // The fastest layout. Throws Error(kBadConfig) on all ranks if none fits: then with the nearest
  // one and what it needs. Collective.
  virtual PlannedLayout choose(const Task& task, const Options& options, const Group& world) = 0;
  // The prediction of the layout that the options give, without trying it. Collective.
  virtual PlannedLayout predict(const Options& options, int ranks) const = 0;
  // The fastest layout for another number of ranks, by the model alone. If no layout divides batch
  // and blocks over them, all ranks are replicas. Pure; takes up to some seconds.
  virtual PlannedLayout again(int ranks) const = 0;
  // The fastest layouts for the present ranks, the best one first, if parts of a step take other
  // times than planned from now on. Up to three.
  virtual std::vector<PlannedLayout> again(const PlannedLayout& planned,
                                           const Departure& departure) const = 0;

 protected:
  Planner() = default;
};

// What train/planner offers to the trainer and to the command.
struct PlannerComponent {
  // `config`: of the recipe, or of the options of a program.
  std::unique_ptr<Planner> (*make)(const Config& config, bool is_recipe);
  // Number of parameters of a recipe's model; nullopt for a model that the planner can describe by
  // a profile only.
  std::optional<std::int64_t> (*parameters_of)(const Config& config);
  // Measures the blocks of a program's task, for `weft plan profile PROGRAM`. Returns the profile
  // as TOML. Collective.
  std::string (*profile)(const Task& task, const Options& options, const Group& world);
};

// The planner of the program. Throws Error(kBadConfig) if it has none. `what` needs it.
const PlannerComponent& planner_of(const Options& options, const std::string& what);

}  // namespace weft::train::internal
