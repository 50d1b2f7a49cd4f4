// Trains what a recipe says, on the ranks of a group.
//
//   Sampler ─ Loader ──> forward ─ loss ─ backward ──> Optimizer ──> metrics, every log_every steps
//                                                                └─> evaluation and checkpoint, every epoch
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/observe/progress.h"

namespace torch::nn {
class Module;
}
namespace weft::data {
struct ImageSet;
}

namespace weft::train {

struct TrainerOptions {
  std::string recipe = "run";  // for the name of the run folder
  bool resume = false;         // go on in run.name, or in the newest run of this recipe
  std::string trace;           // "steps=10:15": their time line goes to trace.json in the run folder
  observe::ProgressMode progress = observe::ProgressMode::kNone;
  // Asked on every rank at the steps of train.log_every: true on any of them ends training on all, after a checkpoint.
  std::function<bool()> should_stop;
  // The images, where they are loaded already; else the trainer loads what the recipe names.
  std::shared_ptr<const data::ImageSet> train_images, test_images;
};

struct TrainResult {
  int ranks = 1;
  std::int64_t epochs = 0;  // complete ones, over all runs of a resumed training
  std::int64_t steps = 0;
  double accuracy = 0;       // of the last evaluation, on all test images
  double loss = 0;           // on them too
  double samples_per_s = 0;  // over all ranks, in training alone
  double seconds = 0;        // of this run, with evaluation and checkpoints
  bool stopped = false;      // should_stop ended it
};

// {"ranks":2,"epochs":5,"accuracy":0.92,…}
std::string to_json(const TrainResult& result);

class Trainer {
 public:
  // Collective over `world`. Loads data, makes the model (the same on all ranks), the run folder on rank 0, and resumes where asked. Throws
  // Error(kBadConfig) for what the recipe got wrong, and what Group's operations throw.
  Trainer(const Config& config, Group world, TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to the end. Collective. Call it once.
  TrainResult run();

  torch::nn::Module& module() const;
  // Of this run; empty on ranks other than 0.
  std::string run_folder() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::train
