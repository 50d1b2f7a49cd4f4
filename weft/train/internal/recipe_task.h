// Creates the task of a recipe from its [model] and [data].
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/log.h"
#include "weft/comm/group.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/loop.h"
#include "weft/train/task.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

class RecipeTask {
 public:
  virtual ~RecipeTask() = default;
  // The model's blocks, in enough detail to check a plan. Creates no modules.
  virtual parallel::BlockModel outline() const = 0;
  // Creates the task. `folder`: the run folder; empty on ranks other than 0. Collective.
  virtual Task make(const std::string& folder) = 0;
  // Fields for the first log line of the run and for the lines at the end of each epoch.
  virtual std::vector<LogField> about() const { return {}; }
  virtual Throughput throughput() const { return {}; }
  virtual std::vector<LogField> epoch_fields(const Evaluation& evaluation,
                                             double samples_per_s) const = 0;
};

// How a run begins: as a new one, from its checkpoint, or again after a rank was lost. The last
// finds in the run folder what the lost rank has left there.
enum class Begin { kNew, kResumed, kAgain };

// Checks all that can be checked before the run folder is created, so that an invalid recipe leaves
// no folder. Throws Error(kBadConfig).
std::unique_ptr<RecipeTask> image_task(const Config& config, const TrainerOptions& options);
std::unique_ptr<RecipeTask> text_task(const Config& config, const Group& world, Begin begin);

}  // namespace weft::train::internal
