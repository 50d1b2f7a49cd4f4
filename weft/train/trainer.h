// Trainer trains a Task under any plan: a recipe's task, or your own model and data.
//
//   data ─ Loader ──> ParallelModel: forward, loss, backward, update
//                         ├─> metrics, every log_every steps
//                         └─> evaluation and checkpoints, when they are due
//
//   weft::train::Task task(weft::parallel::blocks_of(Net()), loss);  // task.h
//   task.train = weft::train::dataset(…);
//   weft::train::Trainer(task, {.epochs = 5, .mesh = "dp=0"}, weft::init()).run();
//
// examples/own_model.cc is a whole program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/observe/progress_mode.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft {
class Config;
}
namespace weft::data {
struct ImageSet;
}
namespace weft::parallel {
class ParallelModel;
}

namespace weft::train {

// Options of a run of a recipe, besides the recipe itself.
struct TrainerOptions {
  std::string recipe = "run";  // Name for the run folder.
  bool resume = false;         // Resume run.name, or the newest run of this recipe.
  std::string trace;           // Steps to trace, as in Options.
  observe::ProgressMode progress = observe::ProgressMode::kNone;
  std::function<bool()> should_stop;
  std::function<void(const StepReport& step, Control& control)> on_step;  // As in Options.
  std::function<void(const EpochReport& epoch, Control& control)> on_epoch_end;
  Components components;  // As in Options.
  // Images that are already loaded. Empty: the trainer loads those that the recipe names.
  std::shared_ptr<const data::ImageSet> train_images, test_images;
};

struct TrainResult {
  int ranks = 1;
  // Complete epochs, over all runs of a resumed training.
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  double loss = 0;  // Loss of the last evaluation. The metrics are of it too.
  std::vector<std::pair<std::string, double>> metrics;
  double accuracy = 0;       // Metric named "accuracy"; 0 without one.
  double samples_per_s = 0;  // Samples per second over all ranks, in training alone.
  // Seconds of this run in this process, with evaluation, checkpoints and recoveries.
  double seconds = 0;
  bool stopped = false;  // True: should_stop ended the run before its end.
  // True: a callback ended the run, or Options::patience.
  bool ended_early = false;
  // Step and value of the best evaluation, with Options::keep_best or patience; else -1 and 0.
  std::int64_t best_step = -1;
  double best = 0;
  bool left = false;  // True: the job has shrunk, and this rank is no longer part of it.
};

// One line of JSON: {"ranks": 2, "epochs": 5, "accuracy": 0.92, …}
std::string to_json(const TrainResult& result);

class Trainer {
 public:
  // Makes the run folder on rank 0 and the model on all ranks, and resumes if asked. Each rank
  // passes the same task. Collective over `world`. Throws Error(kBadConfig) for invalid options and
  // plans, before it makes a run folder. Throws Error(kInvalidArgument) for a task without data,
  // blocks or loss, and as Group's operations do. If a file or folder cannot be used on one rank,
  // that rank throws why, and the others throw kAborted with its reason. The group stays as it was.
  Trainer(Task task, const Options& options, Group world);
  // As above, for the task and options of a recipe. Loads its data.
  Trainer(const Config& config, Group world, const TrainerOptions& options);
  // Prepares a warm spare (weft run --spares) for the rank that it will get: builds the model, and
  // does two steps with samples of the data, so that libtorch has loaded what a step needs. Call it
  // before weft::init(). It has no effect on training. Elsewhere it does nothing. A failure is a
  // warning: the spare is then not as fast. Not collective.
  static void prepare(const Task& task, const Options& options) noexcept;
  // As above, for a recipe. The images that it loads go into `options`.
  static void prepare(const Config& config, TrainerOptions& options) noexcept;
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to the end. Then the modules that the program gave to blocks_of() are the trained ones,
  // whole on every rank, under every plan and strategy. If a machine has too little memory for it,
  // a warning says so, and operations on them throw. Call it once. Collective. Throws what blocks,
  // loss, metrics, data and callbacks throw; the other ranks then get kAborted. If the launcher
  // replaces lost ranks or lets them go (weft run --max-replacements, --min-ranks), training goes
  // on after the loss of a rank (docs/fault-tolerance.md). model(), world() and run_folder() then
  // give new objects.
  TrainResult run();

  // Writes the parameters and buffers, whole, to `folder`: model.safetensors, or above 5 GB several
  // files and model.safetensors.index.json, as Hugging Face's hub has them. load_weights() reads
  // them into a module. No rank needs memory for the whole. Call it after run(), or in a callback
  // that all ranks have. Several hosts need a shared file system. Collective. Throws on all ranks
  // what writing files throws (base/file.h).
  void save(const std::string& folder);

  // The ranks that train. After a rank was lost, another group than the constructor's.
  const Group& world() const;
  // save() and model() throw Error(kInvalidArgument) on a rank with TrainResult::left.
  parallel::ParallelModel& model() const;
  // Folder of this run; empty on ranks other than 0.
  std::string run_folder() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::train
