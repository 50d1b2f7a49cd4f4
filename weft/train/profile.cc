// Measured profiles of machines, recipes and programs.
#include <ATen/ATen.h>

#include "weft/base/config.h"
#include "weft/data/text/packed_rows.h"
#include "weft/train/internal/block_times.h"
#include "weft/train/internal/machine_rates.h"
#include "weft/train/internal/planned_model.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/internal/text.h"
#include "weft/train/planning.h"
#include "weft/train/recipe.h"

namespace weft::train {

Task internal::text_profile_task(const Config& config, std::int64_t vocabulary) {
  const RecipeSettings settings = recipe_settings_of(config);
  const std::int64_t length = settings.model.sequence;
  Task task;
  task.model = text_blocks(settings, vocabulary);
  const bool apart = settings.data.pack_documents;
  task.train = {
      1 << 20, [=](const data::Share& share) {
        const auto rows = static_cast<std::int64_t>(share.indices.size());
        const auto some = [&] { return at::randint(0, vocabulary, {rows, length}, at::kLong); };
        const at::Tensor inputs = some();
        const at::Tensor documents = at::zeros_like(inputs);
        return data::Batch{apart ? parallel::Tensors{inputs, documents} : parallel::Tensors{inputs},
                           {some()},
                           share};
      }};
  return task;
}

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

}  // namespace weft::train
