// Options: how a task is trained. Recipes and programs use the same names.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/init.h"
#include "weft/observe/progress_mode.h"
#include "weft/optim/learning_rate.h"
#include "weft/parallel/compose/plan.h"
#include "weft/plan/mesh/mesh.h"
#include "weft/strategy/strategy.h"
#include "weft/train/components.h"

namespace weft {
class Config;
class Schema;
}  // namespace weft

namespace weft::train {

namespace internal {
class Callbacks;
}

// What callbacks get and ask for (Options::on_step, Options::on_epoch_end):
//
//   options.on_epoch_end = [](const EpochReport& epoch, Control& control) {
//     if (epoch.test_loss && *epoch.test_loss < 0.1) control.stop();
//   };
struct StepReport {
  std::int64_t step = 0;   // Steps done, from 1.
  std::int64_t epoch = 0;  // Complete epochs.
  double lr = 0;           // Learning rate of the step.
  double samples = 0;      // Samples of the step, over all ranks.
  double seconds = 0;      // Time of the step on this rank.
  // Mean loss over the samples of the step, the same on all ranks. Known after the steps in which
  // ranks reduce their losses (Options::log_every).
  std::optional<double> loss = {};
};

// The same on all ranks.
struct EpochReport {
  std::int64_t epoch = 0;  // Complete epochs, from 1.
  std::int64_t step = 0;   // Steps done.
  double train_loss = 0;   // Mean over the samples of the epoch, without those of skipped steps.
  // Results of the last evaluation, if there was one.
  std::optional<double> test_loss = {};
  std::vector<std::pair<std::string, double>> metrics = {};
};

// Requests of a callback. A request of any rank holds for all ranks.
class Control {
 public:
  // Ends training on all ranks after the same step, with an evaluation and a checkpoint, also if
  // the options ask for no checkpoints. From on_step: after the next step in which ranks reduce
  // their losses. From on_epoch_end: at once.
  void stop() { stop_ = true; }
  // Saves a checkpoint, at the same time as stop() would end training, also if the options ask for
  // none.
  void save() { save_ = true; }
  // Adds a value of the program to metrics.jsonl, TensorBoard's file, /metrics, the report and the
  // progress line. Those of rank 0 count; reduce a value over the ranks first if it differs.
  // Throws Error(kInvalidArgument) for an empty name, and for a name of weft's own metrics.
  void log(const std::string& name, double value);

 private:
  friend class internal::Callbacks;

  bool stop_ = false, save_ = false;
  std::vector<std::pair<std::string, double>> logged_;
};

// What to do about a rank that the others wait for. kWarn: name it in the log. kRebalance: also
// divide batches by the measured speed of the replicas from then on. kReplace: also ask the
// launcher for a new process (weft run --max-replacements).
enum class OnStraggler { kWarn, kRebalance, kReplace };

// Number of samples of a step. kConstant: `batch`. kNoise: several batches, up to max_batch
// samples, as the gradient noise scale grows (docs/optimizers.md).
enum class BatchSchedule { kConstant, kNoise };

// The better values of a metric. kAuto: the name decides. Smaller values are better if it has loss,
// error, perplexity or bits in it, or a word such as mse, mae, nll, ppl or wer.
enum class Better { kAuto, kMin, kMax };

// Decides about the batch when the number of ranks changes, while the job trains or when it
// resumes. kKeepGlobalBatch: the global batch stays. Each rank then takes a larger share, in more
// passes if needed. kScale: the share of a rank stays, and the learning rate is scaled linearly.
enum class OnResize { kKeepGlobalBatch, kScale };

// SGD with a learning rate of 0.1 and a momentum of 0.9, seed 1, micro-batches by the number of
// stages, and gradients between hosts that travel during the next forward.
parallel::Plan default_plan();

// The defaults are those of a recipe. The trainer warns of options that are set and have no effect
// beside the others.
struct Options {
  std::int64_t epochs = 5;
  std::int64_t max_steps = 0;  // Maximum number of steps. 0: all epochs.
  std::int64_t batch = 128;    // Global batch size: samples of a step over all ranks.
  // Above 0: samples of a step for each replica, instead of `batch`.
  std::int64_t batch_per_rank = 0;
  // True: divide a batch by the measured speed of the replicas. False: divide it evenly.
  bool balance_by_speed = false;
  OnStraggler on_straggler = OnStraggler::kWarn;
  int prefetch = 2;  // Batches that a thread prepares ahead. 0: none.

  // Axes of the mesh, "dp=2,pp=2" (plan/mesh/mesh.h). An axis of size 0 takes all ranks that the
  // others leave. "auto": measures blocks and machines at the start, and sets axes, micro-batches,
  // schedule and recomputation (docs/planning.md).
  plan::MeshSpec mesh = "dp=0";
  // True: measures as "auto" does, and predicts the time and the memory of a step under `mesh`.
  // Training ends before it starts if they do not fit. Without effect with "auto", which predicts.
  bool predict_plan = false;
  // Optimizer, seed, precision, and how the model is divided. micro_batches = 0: 4 for each rank of
  // pp, otherwise 1; several accumulate gradients. The trainer sets `batch`, and refuses
  // `accumulate`. It also sets an empty `sample` if stages are cut by measured times.
  parallel::Plan plan = default_plan();
  // Where a rank computes: "cpu", "cuda", "cuda:N" or "auto", as train.device of a recipe. It sets
  // plan.device.
  comm::DeviceSpec device = "cpu";
  // How the replicas along dp work together. Other than "sync", they are workers with weights of
  // their own, which exchange these now and then in place of gradients (docs/strategies.md).
  strategy::Strategy strategy;
  // Learning-rate schedule, in epochs. The optimizer sets its base. Period 0: all epochs.
  optim::LearningRate schedule = {.shape = optim::LearningRate::Shape::kCosine, .period = 0};
  // Batch size that the learning rate is meant for; the rate is scaled linearly to the real one. 0:
  // no scaling.
  std::int64_t reference_batch = 0;

  BatchSchedule batch_schedule = BatchSchedule::kConstant;
  std::int64_t max_batch = 0;  // 0: eight batches.

  std::int64_t eval_every = 1;  // Epochs between evaluations. 0: only at the end.
  std::int64_t eval_steps = 0;  // Steps between evaluations within an epoch. 0: none.
  // Samples of a block of the evaluation. 0: a replica's share of a batch.
  std::int64_t eval_batch = 0;
  // A checkpoint is saved when one of the next three is due, and at the end of training. All three
  // 0, and no keep_best: only where a callback asks for one, and where training ends early.
  std::int64_t checkpoint_every = 1;  // Epochs between checkpoints. 0: none by epochs.
  std::int64_t checkpoint_steps = 0;  // Steps between checkpoints. 0: none by steps.
  // Minutes between checkpoints, checked every log_every steps. 0: none by time.
  double checkpoint_minutes = 10;
  std::int64_t keep = 3;  // Newest checkpoints to keep, at least 2. 0: all.
  // Save a checkpoint after each evaluation that is the best so far, and keep the best one beside
  // the newest. best.json of the run folder names it.
  bool keep_best = false;
  // End training after this many evaluations in a row that are not better than the best one (early
  // stopping). 0: never.
  std::int64_t patience = 0;
  // The metric by which evaluations are compared: "loss", or the name of a metric of the task.
  // Changes smaller than min_improvement do not count.
  std::string best_metric = "loss";
  Better best_is = Better::kAuto;
  double min_improvement = 0;
  // Write checkpoints in the background, from a copy of each rank's state.
  bool checkpoint_async = true;
  // End with an error after this many steps in a row with a loss or a gradient that is NaN or
  // infinite. 0: continue. Such steps are skipped (plan.skip_not_finite), so that a checkpoint of
  // the last good weights is saved then.
  std::int64_t max_not_finite = 3;
  // Steps between comparisons of the weights and optimizer state of replicas. Ranks that differ
  // get the values of the majority; without one, training ends with kCorrupt. 0: none.
  std::int64_t compare_steps = 100;
  // Steps between verifications: each replica computes the gradients of another one's batch again
  // and compares the bits. A rank that computes wrongly is named, and the step is skipped; the
  // second time, training ends with kCorrupt. 0: none.
  std::int64_t verify_steps = 0;
  // Steps between copies of the state to memory, from which training goes on when a rank is lost.
  // 0: as many that copies take 1 % of the time. Copies are made where the launcher replaces lost
  // ranks (weft run --max-replacements).
  std::int64_t copy_steps = 0;
  OnResize on_resize = OnResize::kKeepGlobalBatch;
  // Steps between reductions of the loss over the ranks. should_stop is checked then, too.
  std::int64_t log_every = 10;

  // Peak TFLOP/s of the device of one rank, which MFU (model FLOPs utilization) is relative to. 0:
  // unknown, no MFU.
  double peak_tflops = 0;

  // Run folder <dir>/<name>. Without a name, it is named after the time and the program.
  std::string dir = "runs", name = {}, program = "run";
  bool resume = false;  // Resume `name`, or the newest run of this program.
  // Steps to trace, "steps=10:15". The run folder's trace.json gets their timeline.
  std::string trace;
  observe::ProgressMode progress = observe::ProgressMode::kNone;
  // Called on every rank every log_every steps. True on any rank ends training on all ranks, after
  // a checkpoint.
  std::function<bool()> should_stop = nullptr;
  // Called on every rank between two steps: after each step, and after each epoch and its
  // evaluation. They may call what is collective, if all ranks have set them. Exceptions end
  // training, as those of the loss do. With an asynchronous strategy, on_step is called for the
  // rank's own batches. The module's weights are those after the step: with on_step, gradients do
  // not travel during the next forward.
  std::function<void(const StepReport& step, Control& control)> on_step = nullptr;
  std::function<void(const EpochReport& epoch, Control& control)> on_epoch_end = nullptr;
  // Components of weft that options above may need. weft::Trainer sets them.
  Components components;
};

// True if these options ask for checkpoints. Callbacks and an early end save some without them.
bool saves_checkpoints(const Options& options);

// Throws Error(kInvalidArgument) for an Options::trace that is of another form, or empty.
void check_trace(const std::string& trace);

// Schema of the tables [train], [optimizer], [schedule], [strategy], [parallel] and [run] of a
// recipe, of data.prefetch and model.sync_batch_norm, and of [comm].
Schema options_schema();
// Options that these keys set. Throws Error(kBadConfig) for keys that contradict each other.
Options options_of(const Config& config);
// Options of a TOML file with these tables; `assignments` ("train.epochs=3") override it. Throws
// Error(kBadConfig), naming file, line and the nearest key, also for a key that the optimizer,
// schedule or strategy does not use, and for one that contradicts parallel.plan. A key of [comm]
// that is set to another value than its default is such an error, too: init() has met the ranks by
// then, so pass it InitOptions.
Options load_options(const std::string& file, const std::vector<std::string>& assignments = {});
// Inverse of options_of(), for config.toml of a run folder: all that the schema has keys for.
Config config_of(const Options& options);

// Batch sizes and learning rate that follow from the options for a number of replicas.
struct Batches {
  std::int64_t global = 0;     // Samples of one optimizer step, over all ranks.
  std::int64_t per_epoch = 0;  // Optimizer steps of an epoch.
  double base_rate = 0;        // Learning rate after linear scaling.
};

// Computes the batches for `samples` training samples over `replicas`. `batch` is the global batch,
// divided over the replicas, so a recipe takes the same steps at any world size. batch_per_rank,
// where set, makes the batch grow with the world. Throws Error(kBadConfig) for options that
// contradict each other or this world.
Batches plan_batches(const Options& options, int replicas, std::int64_t samples);

}  // namespace weft::train
