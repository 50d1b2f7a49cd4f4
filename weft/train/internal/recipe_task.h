// What a recipe trains, from its [model] and [data].
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
  // The model's blocks, as far as plans are held against them. Makes nothing.
  virtual parallel::BlockModel outline() const = 0;
  // Collective. `folder`: the run's, empty on ranks other than 0.
  virtual Task make(const std::string& folder) = 0;
  // What the run's first line and the lines at the ends of epochs say of it.
  virtual std::vector<LogField> about() const { return {}; }
  virtual Throughput throughput() const { return {}; }
  virtual std::vector<LogField> epoch_fields(const Evaluation& evaluation,
                                             double samples_per_s) const = 0;
};

// Reads what there is before a run folder, so that a recipe's mistakes leave none. Throws
// Error(kBadConfig).
std::unique_ptr<RecipeTask> image_task(const Config& config, const TrainerOptions& options);
std::unique_ptr<RecipeTask> text_task(const Config& config, const Group& world, bool resume);

}  // namespace weft::train::internal
