// Measured profiles of machines, recipes and programs.
#include <algorithm>

#include "weft/base/config.h"
#include "weft/train/internal/planned_model.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/planner/internal/block_times.h"
#include "weft/train/planner/internal/component.h"
#include "weft/train/planner/internal/machine_rates.h"
#include "weft/train/planner/planning.h"
#include "weft/train/recipe.h"

namespace weft::train {

plan::Cluster profile_machine(const Group& world) { return internal::measure_cluster(world); }

plan::Profile profile_recipe(const Config& config, const Group& world,
                             const ProfileOptions& options) {
  const bool text = is_text(config);
  const internal::ModelSettings model = internal::recipe_settings_of(config).model;
  const Task task = text ? internal::text_profile_task(
                               config, internal::vocabulary_of(config, options.vocabulary))
                         : internal::image_task(config, TrainerOptions{})->make("");
  const Options training = options_of(config);
  const internal::Turn turn = internal::turn_of(world);
  return internal::time_blocks(task, world,
                               {.batches = options.batches,
                                .precision = training.plan.precision,
                                .name = model.name,
                                .tokens = text ? model.sequence : 0,
                                .turn = turn.turn,
                                .turns = turn.turns});
}

std::string internal::profile_program(const Task& task, const Options& options,
                                      const Group& world) {
  const std::int64_t batch = std::max<std::int64_t>(1, options.batch / world.size());
  const Turn turn = turn_of(world);
  BlockTimesOptions timing = {.precision = options.plan.precision,
                              .name = options.program,
                              .turn = turn.turn,
                              .turns = turn.turns};
  timing.batches = {1};
  if (batch > 1) timing.batches.push_back(std::min<std::int64_t>(batch, 64));
  return to_toml(time_blocks(task, world, timing));
}

}  // namespace weft::train
