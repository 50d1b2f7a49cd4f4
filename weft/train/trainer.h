// One trainer for every task: a recipe's, or a model and data of one's own, under any plan.
//
//   data ─ Loader ──> ParallelModel: forward, loss, backward, update ──> metrics, every log_every steps
//                                                                    └─> evaluation and checkpoint, every epoch
//
//   weft::train::Task task(weft::parallel::blocks_of(Net()), loss);         // task.h; examples/own_model.cc
//   task.train = weft::train::dataset(…);
//   weft::train::Trainer(task, {.epochs = 5, .mesh = "dp=0"}, weft::init()).run();
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

// What a run of a recipe has beside the recipe.
struct TrainerOptions {
  std::string recipe = "run";  // for the name of the run folder
  bool resume = false;         // go on in run.name, or in the newest run of this recipe
  std::string trace;           // as Options
  observe::ProgressMode progress = observe::ProgressMode::kNone;
  std::function<bool()> should_stop;
  // The images, where they are loaded already; else the trainer loads what the recipe names.
  std::shared_ptr<const data::ImageSet> train_images, test_images;
};

struct TrainResult {
  int ranks = 1;
  std::int64_t epochs = 0;  // complete ones, over all runs of a resumed training
  std::int64_t steps = 0;
  double loss = 0;  // of the last evaluation, as are the metrics
  std::vector<std::pair<std::string, double>> metrics;
  double accuracy = 0;       // the metric of that name, if there is one
  double samples_per_s = 0;  // over all ranks, in training alone
  double seconds = 0;        // of this run, with evaluation and checkpoints
  bool stopped = false;      // should_stop ended it
};

// {"ranks":2,"epochs":5,"accuracy":0.92,…}
std::string to_json(const TrainResult& result);

class Trainer {
 public:
  // Collective over `world`. Makes the run folder on rank 0 and the model on all ranks, and resumes where asked. Each rank gives the same
  // task. Throws Error(kBadConfig) for options and plans that cannot be, before there is a run folder; Error(kInvalidArgument) for a task
  // without data, blocks or loss; and what Group's operations throw.
  Trainer(Task task, const Options& options, Group world);
  // What a recipe says. Loads its data.
  Trainer(const Config& config, Group world, const TrainerOptions& options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to the end. Collective. Call it once. Throws what blocks, loss, metrics and data throw; the other ranks then get kAborted.
  TrainResult run();

  parallel::ParallelModel& model() const;
  // Of this run; empty on ranks other than 0.
  std::string run_folder() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::train
