// The training loop of any task.
//
//   open() ── create the learner (from resumed(), if set) ── start(learner) ── run()
//
// A step goes through Learner::step(). Around it, in this order:
//
//   StepRecorder   what the step took
//   StepMeasures   whether steps take as long as planned
//   StepLog        every log_every steps: one all-reduce of losses and requests, then the metrics
//   RunHealth      numbers that are not finite, wrong gradients, slow ranks, replicas that differ
//   Decisions      callbacks, early stopping, the best checkpoint
//   RunCheckpoints checkpoints, and copies in memory
//   RunOutput      run folder, progress line, messages to the launcher
//
// Where workers take batches when they are ready (asynchronous strategies), ranks meet seldom:
//
//   begin ── each rank its batches, at its own time ── meet: look, evaluate, save, copy ── begin …
//
// They meet at the end of an epoch, and where an evaluation, a checkpoint, a copy of the state or
// train.max_steps is due. A rank that wishes to stop, save or resize ends the batches that are
// given out, so that all ranks meet soon. WorkerReports has what they do between meetings.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/elastic/recovery.h"
#include "weft/optim/learning_rate.h"
#include "weft/train/internal/decisions.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/resumption.h"
#include "weft/train/internal/run_checkpoints.h"
#include "weft/train/internal/run_count.h"
#include "weft/train/internal/run_health.h"
#include "weft/train/internal/run_output.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/step_measures.h"
#include "weft/train/internal/step_recorder.h"
#include "weft/train/internal/tracing.h"
#include "weft/train/internal/worker_reports.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

// Fields of the log line at the end of an epoch, besides losses and metrics.
using EpochFields =
    std::function<std::vector<LogField>(const Evaluation& evaluation, double samples_per_s)>;

class Loop {
 public:
  // `config` is written to the run folder. `copies`: copy the state to memory (copying.h).
  Loop(Options options, const Config& config, Group world, bool copies);
  // The parts hold references to its options.
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Creates the run folder on rank 0. If the run is resumed, takes `state`, or loads its newest
  // checkpoint. Collective.
  void open(std::optional<Saved> state = std::nullopt);
  const std::optional<Saved>& resumed() const { return resumption_.saved(); }
  // See Resumption.
  Options learner_options(int replicas) const { return resumption_.learner_options(replicas); }
  // Continues from the checkpoint, if any. The learner must outlive run(). Collective.
  void start(Learner& learner, EpochFields fields, Throughput throughput = {});
  // Called when steps take other times than planned, with the number of steps left. True: run()
  // ends, and training goes on with another plan. Collective.
  using Answer = std::function<bool(const Departure&, std::int64_t steps_left)>;
  // Watches the times of the steps from now on.
  void watch_plan(const StepParts& expected, Answer answer);
  // Trains to the end, or until should_stop returns true. nullopt: the job shall have resize()
  // ranks, and copies() has the state; or changes_plan(), and the newest checkpoint has it.
  // Collective.
  std::optional<TrainResult> run();
  int resize() const { return resize_; }
  bool changes_plan() const { return changes_plan_; }
  // Of the steps so far. After run(), the same on all ranks.
  const MeasuredRun& measured() const { return measured_; }
  // Ranks by the launcher that wait to join. This rank may not know them yet.
  const std::vector<int>& newcomers() const { return requests_.newcomers(); }
  // Copies of the state in memory; null if there are none. They outlive the loop.
  std::shared_ptr<const elastic::StateCopies> copies() const { return checkpoints_.copies(); }

  std::string run_folder() const { return output_.path(); }  // empty on ranks other than 0
  observe::Trace* trace() { return tracing_.trace(); }       // null if no steps are traced

 private:
  using Clock = std::chrono::steady_clock;

  void run_epoch();
  void advance();
  StepReport step();
  void look();
  bool look_due() const;
  void answer_departure();
  void end_of_epoch();
  void log_epoch(double train_loss);
  void end_run();
  TrainResult result() const;
  // Asynchronous strategies.
  bool is_shared() const { return learner_->shared() != nullptr; }
  void run_shared();
  std::int64_t next_meeting() const;
  bool wants_meeting();
  // Evaluations, callbacks, an end before the last epoch.
  bool evaluation_due() const;
  bool evaluation_is_left() const;
  void evaluate_within();
  void evaluate();
  void tell_step(const StepReport& report);
  void tell_epoch(double train_loss);
  void take_last_requests();
  void add_logged();
  void end_early();
  // Checkpoints and copies.
  void save_within();
  void save();  // unless the weights may be NaN or infinite
  void look_before_save();
  void save_now();
  BestMark kept_best() const;
  [[noreturn]] void end_with(const Error& error, bool saves);
  bool save_is_due() const;
  bool last_save_is_due();
  void copy_state(bool now = false);
  Progressed progressed() const;

  std::int64_t batches_of_run() const;
  std::int64_t steps_left() const;
  bool has_all_steps() const { return options_.max_steps > 0 && at_.step >= options_.max_steps; }
  bool is_complete() const { return at_.epoch >= options_.epochs || has_all_steps(); }
  // A request to stop ends the run before its end.
  bool is_cut() const { return stop_ && !is_complete(); }
  bool at_end() const { return stop_ || decisions_->ends() || has_all_steps(); }
  bool pauses() const { return resize_ != 0 || changes_plan_; }

  const Options options_;
  const Config config_;
  const Group world_;
  const bool copies_;
  const Clock::time_point started_;
  Tracing tracing_;
  RunOutput output_;
  Resumption resumption_;
  StepRecorder recorder_;
  StepMeasures measures_;
  RunHealth health_;
  RunCheckpoints checkpoints_;
  // From start() on.
  Learner* learner_ = nullptr;
  EpochFields fields_;
  optim::LearningRate rate_;  // in epochs
  std::optional<StepLog> log_;
  std::optional<Decisions> decisions_;
  std::optional<WorkerReports> reports_;  // of asynchronous strategies

  RunCount at_;
  std::int64_t looked_step_ = 0;  // of the last look()
  std::int64_t next_look_ = 0;    // step after which the next one is due at the latest
  Clock::time_point looked_at_;   // of the last wants_meeting()
  double training_s_ = 0, trained_samples_ = 0;  // of this process
  std::optional<double> grad_norm_;              // of the last step
  std::optional<double> step_loss_;              // of the last step, if look() has reduced it
  Evaluation evaluation_;                        // the last one
  std::int64_t evaluated_step_ = -1;             // of the run
  bool stop_ = false, wishes_to_stop_ = false;   // of all ranks, of this one
  bool told_end_ = false;
  elastic::SizeRequests requests_;
  int resize_ = 0;  // number of ranks that all ranks agreed to change to; 0: none
  Answer answer_;
  bool changes_plan_ = false;
  MeasuredRun measured_;
};

}  // namespace weft::train::internal
