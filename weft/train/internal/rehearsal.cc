// Trainer::prepare(): a step in a world of one process. It runs the code that the first step in the
// job will run, so that libtorch's kernels, threads and memory are ready then.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/variables.h"
#include "weft/comm/backend.h"
#include "weft/data/image_set.h"
#include "weft/observe/step_timer.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/rank_link/spare.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace {

constexpr int kSteps = 2;  // the second one finds the memory that the first one allocated

Group alone() { return Group(comm::make_backend(nullptr, 0, 1), "spare"); }

// Samples that a rank of the job takes in a step.
std::int64_t share_of_a_rank(const Options& options, std::int64_t samples) {
  const std::int64_t ranks = std::max(1, number_variable("WORLD_SIZE").value_or(1));
  const std::int64_t share =
      options.batch_per_rank > 0 ? options.batch_per_rank : options.batch / ranks;
  return std::clamp<std::int64_t>(share, 1, samples);
}

// The job's options for one process. Its plan is not the job's: forms of parallelism between ranks
// are left out, and their communication is not rehearsed.
Options for_one(const Options& options, std::int64_t samples) {
  Options one = options;
  one.mesh = "dp=1";
  one.batch = share_of_a_rank(options, samples);
  one.batch_per_rank = 0;
  one.reference_batch = 0;
  one.prefetch = 0;
  one.plan.micro_shards = 0;
  one.plan.micro_batches = 1;
  one.plan.cuts.clear();
  one.plan.codec = "none";
  return one;
}

void rehearse(const Task& task, const Options& options) {
  const Mesh mesh(alone(), plan::parse_axes("dp=1"));
  internal::Learner learner(task, for_one(options, task.train.size), mesh, nullptr, nullptr);
  observe::StepTimer timer;
  for (int step = 0; step < kSteps; ++step) learner.step(step + 1, 0, timer);
}

template <class Work>
void attempt(const Work& work) noexcept {
  if (!rank_link::is_spare()) return;
  try {
    work();
  } catch (const std::exception& error) {
    log_warn("a spare could not prepare all of its work: " + describe(error) +
             "; it takes a rank all the same, but not as fast");
  }
}

void load_images(const Config& config, TrainerOptions& options) {
  const auto set = internal::image_set_of(internal::recipe_settings_of(config).data);
  const auto load = [&](data::Part part) {
    return std::make_shared<const data::ImageSet>(data::load_images(set, part));
  };
  if (!options.train_images) options.train_images = load(data::Part::kTrain);
  if (!options.test_images) options.test_images = load(data::Part::kTest);
}

// The tokens of the running job are in its run folder, which the launcher names.
void rehearse_text(const Config& config) {
  const std::string folder = variable("WEFT_RESUME_RUN");
  if (folder.empty() || !std::filesystem::exists(folder + "/tokens.bin")) return;
  const auto recipe = internal::text_task(config, alone(), internal::Begin::kAgain);
  rehearse(recipe->make(folder), options_of(config));
}

}  // namespace

void Trainer::prepare(const Task& task, const Options& options) noexcept {
  attempt([&] { rehearse(task, options); });
}

void Trainer::prepare(const Config& config, TrainerOptions& options) noexcept {
  attempt([&] {
    check_recipe(config);
    if (is_text(config)) return rehearse_text(config);
    load_images(config, options);
    rehearse(internal::image_task(config, options)->make(""), options_of(config));
  });
}

}  // namespace weft::train
