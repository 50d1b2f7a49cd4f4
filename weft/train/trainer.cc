#include "weft/train/trainer.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <optional>
#include <sstream>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/loop.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

void check_task(const Task& task) {
  WEFT_REQUIRE(!task.model.blocks.empty(),
               "the task has no model: give blocks_of(module), or a list of blocks");
  WEFT_REQUIRE(task.model.loss,
               "the task has no loss: give a function of the model's output and the target");
  WEFT_REQUIRE(task.train.make && task.train.size > 0,
               "the task has no training data: give samples(…) or dataset(…) that is not empty");
  WEFT_REQUIRE(task.test.make || task.test.size == 0,
               "the task's test data has a size and no samples");
  for (const Metric& metric : task.metrics)
    WEFT_REQUIRE(metric.of, "the metric '" + metric.name + "' has no function");
}

Options of_recipe(const Config& config, const TrainerOptions& with) {
  Options options = options_of(config);
  options.program = with.recipe;
  options.resume = with.resume;
  options.trace = with.trace;
  options.progress = with.progress;
  options.should_stop = with.should_stop;
  return options;
}

std::unique_ptr<internal::RecipeTask> checked_recipe(const Config& config, const Group& world,
                                                     const TrainerOptions& options) {
  check_recipe(config);
  return is_text(config) ? internal::text_task(config, world, options.resume)
                         : internal::image_task(config, options);
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(Task task, const Options& options, Group world)
      : options_(options),
        mesh_(world, plan::parse_axes(options.mesh)),
        loop_(options, config_of(options), std::move(world)) {
    check_task(task);
    internal::check_learner(task.model, options_, mesh_, task.train.size);
    loop_.open();
    start(std::move(task), {}, [](const Evaluation&, double samples_per_s) {
      return std::vector<LogField>{{"samples_per_s", std::round(samples_per_s)}};
    });
  }

  Impl(const Config& config, Group world, const TrainerOptions& options)
      : options_(of_recipe(config, options)),
        mesh_(world, plan::parse_axes(options_.mesh)),
        recipe_(checked_recipe(config, world, options)),
        loop_(options_, config, std::move(world)) {
    internal::check_learner(recipe_->outline(), options_, mesh_, 1);
    loop_.open();
    Task task = recipe_->make(loop_.run_folder());
    start(
        std::move(task), recipe_->about(),
        [this](const Evaluation& evaluation, double samples_per_s) {
          return recipe_->epoch_fields(evaluation, samples_per_s);
        },
        recipe_->throughput());
  }

  TrainResult run() { return loop_.run(); }
  parallel::ParallelModel& model() { return learner_->model(); }
  std::string run_folder() const { return loop_.run_folder(); }

 private:
  void start(Task task, std::vector<LogField> about, internal::EpochFields fields,
             internal::Throughput throughput = {});

  const Options options_;
  const Mesh mesh_;
  std::unique_ptr<internal::RecipeTask> recipe_;  // null: the program gave its own task
  internal::Loop loop_;  // before learner_: its trace must outlive the learner's thread
  std::optional<internal::Learner> learner_;
};

void Trainer::Impl::start(Task task, std::vector<LogField> about, internal::EpochFields fields,
                          internal::Throughput throughput) {
  const auto& resumed = loop_.resumed();
  learner_.emplace(std::move(task), options_, mesh_, resumed ? &*resumed : nullptr, loop_.trace());
  std::vector<LogField> line{{"ranks", mesh_.world().size()},
                             {"mesh", mesh_.layout().describe()},
                             {"batch", learner_->batches().global},
                             {"steps_per_epoch", learner_->batches().per_epoch},
                             {"threads", at::get_num_threads()}};
  line.emplace_back("parameters", learner_->model().num_parameters());
  line.insert(line.end(), about.begin(), about.end());
  line.emplace_back("run", run_folder());
  log_info("training " + options_.program, line);
  std::istringstream passes(learner_->model().describe());
  for (std::string pass; std::getline(passes, pass);) {
    if (pass.find(": nothing to do") == std::string::npos) log_info(pass);
  }
  loop_.start(*learner_, std::move(fields), throughput);
}

std::string to_json(const TrainResult& result) {
  std::string text = "{\"ranks\": " + std::to_string(result.ranks) +
                     ", \"epochs\": " + std::to_string(result.epochs);
  for (const auto& [name, value] : result.metrics)
    text += ", " + json_quote(name) + ": " + json_number(value);
  return text + ", \"loss\": " + json_number(result.loss) +
         ", \"samples_per_s\": " + json_number(std::round(result.samples_per_s)) +
         ", \"seconds\": " + json_number(std::round(result.seconds * 100) / 100) + "}";
}

Trainer::Trainer(Task task, const Options& options, Group world)
    : impl_(std::make_unique<Impl>(std::move(task), options, std::move(world))) {}
Trainer::Trainer(const Config& config, Group world, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>(config, std::move(world), options)) {}
Trainer::~Trainer() = default;
TrainResult Trainer::run() { return impl_->run(); }
parallel::ParallelModel& Trainer::model() const { return impl_->model(); }
std::string Trainer::run_folder() const { return impl_->run_folder(); }

}  // namespace weft::train
