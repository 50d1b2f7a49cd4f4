// The training loop of any task.
//
//   open() ── create the learner (from resumed(), if set) ── start(learner) ── run()
//
// A step goes through Learner::step(). Around it, in this order:
//
//   StepRecorder   what the step took, its metrics, whether steps take as long as planned
//   RunRequests    every log_every steps, the ranks agree by one all-reduce (look())
//   RunHealth      numbers that are not finite, wrong gradients, slow ranks, replicas that differ
//   Decisions      callbacks, early stopping, the best checkpoint
//   Evaluations    evaluations
//   RunCheckpoints checkpoints, and copies in memory
//   RunLimits      the last step; a stop; other ranks or another plan
//   RunOutput      run folder, metrics, progress line, messages to the launcher
//
// Where workers take batches when they are ready (asynchronous strategies), ranks meet seldom:
//
//   begin ── each rank its batches, at its own time ── meet: look, evaluate, save, copy ── begin …
//
// They meet at the end of an epoch, and where an evaluation, a checkpoint, a copy of the state or
// train.max_steps is due. A rank that wishes to stop, save or resize ends the batches that are
// given out, so that all ranks meet soon. WorkerReports has what they do between meetings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/train/internal/decisions.h"
#include "weft/train/internal/evaluations.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/resumption.h"
#include "weft/train/internal/run_checkpoints.h"
#include "weft/train/internal/run_count.h"
#include "weft/train/internal/run_health.h"
#include "weft/train/internal/run_limits.h"
#include "weft/train/internal/run_output.h"
#include "weft/train/internal/run_requests.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/step_recorder.h"
#include "weft/train/internal/tracing.h"
#include "weft/train/internal/training_speed.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

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
  Options learner_options(int replicas, bool is_planned) const {
    return resumption_.learner_options(replicas, is_planned);
  }
  // Continues from the checkpoint, if any. The learner must outlive run(). Collective.
  void start(Learner& learner, EpochFields fields, Throughput throughput = {});
  // Watches the times of the steps from now on.
  void watch_plan(const StepParts& expected, PlanAnswer answer);
  // Trains to the end, or until should_stop returns true. nullopt: the job shall have resize()
  // ranks, and copies() has the state; or changes_plan(), and the newest checkpoint has it.
  // Collective.
  std::optional<TrainResult> run();
  // Time and samples of this process. They go on from those of the session before, if there was
  // one: call go_on_from() before run().
  const TrainingSpeed::Totals& totals() const { return output_.speed().totals(); }
  void go_on_from(const TrainingSpeed::Totals& before) { output_.speed().go_on_from(before); }
  int resize() const { return limits_.resize(); }
  bool changes_plan() const { return limits_.changes_plan(); }
  // Of the steps so far. After run(), the same on all ranks.
  const MeasuredRun& measured() const { return recorder_.measures().measured(); }
  // Ranks by the launcher that wait to join. This rank may not know them yet.
  const std::vector<int>& newcomers() const { return requests_.newcomers(); }
  // Copies of the state in memory; null if there are none. They outlive the loop.
  std::shared_ptr<const elastic::StateCopies> copies() const { return checkpoints_.copies(); }

  std::string run_folder() const { return output_.path(); }  // empty on ranks other than 0
  observe::Trace* trace() { return tracing_.trace(); }       // null if no steps are traced

 private:
  void say_that_nothing_is_left() const;
  void run_epoch();
  void advance();
  StepReport step();
  double learning_rate() const;
  double look();
  bool look_is_due() const;
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
  [[noreturn]] void end_with(const Error& error, bool saves);
  bool save_is_due() const;
  bool last_save_is_due();
  void copy_state(bool now = false);
  Progressed progressed() const;

  std::int64_t steps_per_epoch() const { return learner_->batches().per_epoch; }
  bool at_end() const { return limits_.stops() || decisions_->ends() || limits_.has_all_steps(); }
  bool is_over() const { return limits_.has_all_epochs() || at_end(); }

  const Options options_;
  const Config config_;
  const Group world_;
  RunCount at_;
  RunLimits limits_;
  RunRequests requests_;
  Tracing tracing_;
  RunOutput output_;
  Resumption resumption_;
  StepRecorder recorder_;
  RunHealth health_;
  Evaluations evaluations_;
  RunCheckpoints checkpoints_;
  // From start() on.
  Learner* learner_ = nullptr;
  std::optional<Decisions> decisions_;
};

}  // namespace weft::train::internal
