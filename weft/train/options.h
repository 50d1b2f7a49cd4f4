// How a task is trained: the same words for a recipe and for a program of one's own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/observe/progress_mode.h"
#include "weft/optim/learning_rate.h"
#include "weft/parallel/compose/plan.h"

namespace weft {
class Config;
class Schema;
}  // namespace weft

namespace weft::train {

struct Options {
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;       // 0: all epochs
  std::int64_t batch = 64;          // samples of a step, over all ranks
  std::int64_t batch_per_rank = 0;  // above 0: of a step and replica, in place of `batch`
  bool balance_by_speed = false;    // shares of a batch by the speed of each replica; false: even ones
  int prefetch = 2;                 // batches made ahead by a thread; 0: none

  // Axes of the mesh, "dp=2,pp=2" (plan/mesh.h); one size of 0 is what the others leave.
  std::string mesh = "dp=0";
  // Optimizer, seed, precision, and how the model is divided. micro_batches = 0: four for each rank of pp, else one. `batch` and, where it
  // is empty and stages are cut by measured times, `sample` are the trainer's.
  parallel::Plan plan = {.micro_batches = 0};
  // The learning rate in epochs: base is the optimizer's, period 0 all epochs.
  optim::LearningRate schedule = {.period = 0};
  std::int64_t reference_batch = 0;  // the learning rate is meant for this batch and scaled linearly; 0: as it is

  std::int64_t eval_every = 1;  // epochs between evaluations; 0: only at the end
  std::int64_t eval_steps = 0;  // steps between evaluations within an epoch; 0: none
  std::int64_t eval_batch = 0;  // samples of a block of the evaluation; 0: a replica's share of a batch
  // A checkpoint is saved when any of the three is due, and at the end of training. All three 0: no checkpoints.
  std::int64_t checkpoint_every = 1;  // epochs between checkpoints; 0: none by epochs
  std::int64_t checkpoint_steps = 0;  // steps between checkpoints; 0: none by steps
  double checkpoint_minutes = 10;     // minutes since the last checkpoint, checked every log_every steps; 0: none by time
  std::int64_t keep = 3;              // checkpoints kept; 0: all
  bool checkpoint_async = true;       // write checkpoints in the background, from a copy of each rank's state
  std::int64_t log_every = 10;        // steps between reductions of the loss over ranks, and looks at should_stop

  // The run folder <dir>/<name>; without a name it is called by the time and the program.
  std::string dir = "runs", name = {}, program = "run";
  bool resume = false;  // go on in `name`, or in the newest run of this program
  std::string trace;    // "steps=10:15": their time line goes to trace.json in the run folder
  observe::ProgressMode progress = observe::ProgressMode::kNone;
  // Asked on every rank at the steps of log_every: true on any of them ends training on all, after a checkpoint.
  std::function<bool()> should_stop = nullptr;
};

// True when these options ever save a checkpoint.
bool saves_checkpoints(const Options& options);

// The keys [train], [optimizer], [schedule], [parallel] and [run] of a recipe.
Schema options_schema();
// What they say. Throws Error(kBadConfig) for keys that contradict each other.
Options options_of(const Config& config);
// Of a TOML file with these tables, and assignments over it ("train.epochs=3"). Throws Error(kBadConfig) naming file, line and the
// nearest key.
Options load_options(const std::string& file, const std::vector<std::string>& assignments = {});
// The other way round, for a run folder's config.toml: what the schema has keys for.
Config config_of(const Options& options);

// What the options mean for so many replicas.
struct Batches {
  std::int64_t global = 0;     // samples of one optimizer step, over all ranks
  std::int64_t per_epoch = 0;  // optimizer steps of an epoch
  double base_rate = 0;        // learning rate after linear scaling
};

// `batch` is the global batch, divided over the replicas, so that a recipe takes the same steps at any world; batch_per_rank, where set,
// makes it grow with the world. Throws Error(kBadConfig) for options that contradict each other or this world.
Batches plan_batches(const Options& options, int replicas, std::int64_t samples);

}  // namespace weft::train
