// The epochs of a training run, whatever is trained: steps, looks at the loss, evaluations, checkpoints, metrics, the run folder.
//
//   open() ── the task is made, from resumed() where there is one ── start(task) ── run()
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/observe/run_folder.h"
#include "weft/optim/learning_rate.h"
#include "weft/train/evaluate.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/tracing.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

// What a loop trains: data, model and optimiser. Calls are collective but for position(), epoch_values() and
// epoch_fields().
class Task {
 public:
  struct Step {
    double samples = 0;          // over all ranks
    std::vector<double> losses;  // summed over samples, this rank's part; one, or one a micro-shard
  };

  virtual ~Task() = default;
  // The next batch and one step of the optimiser.
  virtual Step step(double lr, observe::StepTimer& timer) = 0;
  // After a look: all ranks know the losses, and nothing is under way but gradients.
  virtual void looked() {}
  // Throws where the epoch's batches are not used up.
  virtual void end_epoch() = 0;
  virtual Evaluation evaluate() = 0;
  // Returns when the weights are those of the last step.
  virtual void settle() = 0;
  // On rank 0: a checkpoint of it all. Others give anything.
  virtual checkpoint::Checkpoint pack(const Progressed& progressed) = 0;
  // All but the weights, which the task was made with.
  virtual void restore(const checkpoint::Checkpoint& checkpoint, const data::SamplerState& position) = 0;
  virtual data::SamplerState position() const = 0;
  // Numbers of the epoch that has ended, for the run's metrics and for the line at its end.
  virtual observe::Values epoch_values() const { return {}; }
  // What that line says besides losses and these.
  virtual std::vector<LogField> epoch_fields(const Evaluation& evaluation, double samples_per_s) const = 0;
};

class Loop {
 public:
  struct Plan {
    std::int64_t samples = 0;  // of an epoch
    Batches batches;
    optim::LearningRate rate;
  };

  Loop(const Config& config, Group world, TrainerOptions options);

  // Collective. Makes the run folder on rank 0; where the run is resumed, loads its newest checkpoint.
  void open();
  const std::optional<checkpoint::Checkpoint>& resumed() const { return resumed_; }
  // Collective. Goes on where the checkpoint ended. The task outlives the loop's calls.
  void start(Task& task, const Plan& plan);
  // Collective. To the end, or until should_stop.
  TrainResult run();

  std::string run_folder() const { return folder_ ? folder_->path() : ""; }  // empty on ranks other than 0
  observe::Trace* trace() { return tracing_.trace(); }                       // null where nothing is recorded

 private:
  using Clock = std::chrono::steady_clock;

  void run_epoch();
  void step();
  void look();
  void end_of_epoch();
  void evaluate_within();
  void evaluate();
  void save();
  bool at_end() const { return stop_ || (max_steps_ > 0 && step_ >= max_steps_); }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(config_.get_int("train.seed")); }

  const Config config_;
  const Group world_;
  const TrainerOptions options_;
  const Clock::time_point started_;
  Tracing tracing_;
  Task* task_ = nullptr;
  Plan plan_;

  std::unique_ptr<observe::RunFolder> folder_;  // rank 0's, as are the metrics
  std::unique_ptr<observe::Metrics> metrics_;
  std::optional<checkpoint::Checkpoint> resumed_;  // until the task is restored
  std::optional<StepLog> log_;
  std::optional<observe::Progress> progress_;
  observe::StepTimer timer_;

  std::int64_t step_ = 0, epoch_ = 0, in_epoch_ = 0, max_steps_ = 0;
  std::int64_t saved_step_ = -1, evaluated_step_ = -1;
  double epoch_loss_ = 0, last_loss_ = 0;
  double training_s_ = 0, trained_samples_ = 0;  // of this run
  bool stop_ = false;
  Evaluation evaluation_;
};

}  // namespace weft::train::internal
