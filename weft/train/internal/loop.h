// The training loop of any task: steps, reductions of the loss, evaluations, checkpoints, metrics,
// the run folder.
//
//   open() ── create the learner (from resumed(), if set) ── start(learner) ── run()
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/elastic/copying.h"
#include "weft/elastic/recovery.h"
#include "weft/observe/progress.h"
#include "weft/observe/run/run_folder.h"
#include "weft/observe/run/step_times.h"
#include "weft/optim/learning_rate.h"
#include "weft/strategy/shared_batches.h"
#include "weft/train/internal/decisions.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/run_plan.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/stragglers.h"
#include "weft/train/internal/tracing.h"
#include "weft/train/trainer.h"

namespace weft::train::internal {

// Fields of the log line at the end of an epoch, besides losses and metrics.
using EpochFields =
    std::function<std::vector<LogField>(const Evaluation& evaluation, double samples_per_s)>;

// Unit of speed on the progress line.
struct Throughput {
  const char* name = "samples/s";
  double per_sample = 1;
};

class Loop {
 public:
  // `config` is written to the run folder. `copies`: copy the state to memory (copying.h).
  Loop(Options options, const Config& config, Group world, bool copies);

  // Creates the run folder on rank 0. If the run is resumed, takes `state`, or loads its newest
  // checkpoint. Collective.
  void open(std::optional<Saved> state = std::nullopt);
  const std::optional<Saved>& resumed() const { return resumed_; }
  // Options for a learner of this many replicas. From a checkpoint, the batch and the rate go on as
  // changes of the number of ranks have left them. Throws Error(kInvalidArgument) if the
  // configuration asks for another batch than that of the checkpoint.
  Options learner_options(int replicas) const;
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
  std::shared_ptr<const elastic::StateCopies> copies() const {
    return copying_ ? copying_->copies() : nullptr;
  }

  std::string run_folder() const {
    return folder_ ? folder_->path() : "";
  }                                                     // empty on ranks other than 0
  observe::Trace* trace() { return tracing_.trace(); }  // null if no steps are traced

 private:
  using Clock = std::chrono::steady_clock;

  bool resizes() const;
  void restore();
  std::int64_t batches_of_run() const;
  void run_epoch();
  void advance();
  StepReport step();
  // Asynchronous strategies (loop_shared.cc).
  void run_shared();
  std::int64_t next_meeting() const;
  bool wants_meeting();
  void add_shared(const StepLog::Step& step);
  void report_shared(bool last);
  void take_sums(StepLog::Seen& seen);
  void show_staleness();
  void note_time(bool ready);
  void look();
  void show(const StepLog::Seen& seen);
  void tell_rate(double samples, double seconds);
  void watch_numbers(const StepLog::Seen::NotFinite& now);
  void name_skipped_step() const;  // the first, the tenth, the hundredth … in a row
  void watch_verification();
  void compare_replicas();
  void watch_stragglers(const StepLog::Seen& seen);
  void count_step(const StepLog::Step& step);
  void watch_plan_now();
  std::int64_t steps_left() const;
  void measure_run();
  void end_of_epoch();
  void evaluate_within();
  void evaluate();
  void save();  // unless the weights may be NaN or infinite
  void save_now();
  void make_saver();
  // True if the options ask for checkpoints. Otherwise requests alone save one.
  bool saves() const { return saves_checkpoints(options_); }
  bool last_save_is_due();
  // What the program and the evaluations decide (loop_decisions.cc).
  void tell_step(const StepReport& report);
  void tell_epoch(double train_loss);
  void add_logged();
  void end_early();
  bool save_is_due() const { return steps_due() || save_due_ || decisions_->save_is_due(); }
  void copy_state(bool now = false);
  Progressed progressed() const {
    return {step_,
            learner_->position(),
            epoch_loss_,
            epoch_samples_,
            options_.plan.seed,
            learner_->division(),
            asked_batch(config_),
            log_->noise(),
            passes_,
            decisions_->state(),
            learner_->samples()};
  }
  void open_folder(bool has_state);
  void write_environment() const;
  void write_report() const;
  bool steps_due() const {
    return options_.checkpoint_steps > 0 && step_ % options_.checkpoint_steps == 0;
  }
  bool minutes_due() const;
  void tell_launcher() const;
  bool evaluation_due() const {
    return options_.eval_steps > 0 && step_ % options_.eval_steps == 0;
  }
  bool look_due() const {
    return step_ >= next_look_ || in_epoch_ == epoch_steps_ || at_end() || steps_due() ||
           evaluation_due();
  }
  bool has_all_steps() const { return options_.max_steps > 0 && step_ >= options_.max_steps; }
  bool is_complete() const { return epoch_ >= options_.epochs || has_all_steps(); }
  bool at_end() const { return stop_ || decisions_->ends() || has_all_steps(); }

  const Options options_;
  const Config config_;
  const Group world_;
  const bool copies_;
  const Clock::time_point started_;
  Tracing tracing_;
  Learner* learner_ = nullptr;
  EpochFields fields_;
  optim::LearningRate rate_;  // in epochs

  std::unique_ptr<observe::RunFolder> folder_;  // on rank 0 only, like metrics_
  std::unique_ptr<observe::Metrics> metrics_;
  std::optional<Saved> resumed_;  // until the learner is restored
  std::int64_t looked_step_ = 0;  // of the last look()
  std::int64_t next_look_ = 0;    // step after which the next look() is due at the latest
  elastic::SizeRequests requests_;
  int resize_ = 0;         // number of ranks that all ranks agreed to change to; 0: none
  bool recovers_ = false;  // resumed_ is of copies in memory
  std::optional<StepLog> log_;
  optim::NoiseScale::State resumed_noise_;  // of the checkpoint
  std::int64_t passes_ = 1;                 // batches of a step (batch_schedule.h)
  std::optional<Decisions> decisions_;      // from start() on
  std::optional<RunSaver> saver_;           // from the first save on, if saves() is false
  std::optional<elastic::Copying> copying_;
  std::optional<observe::Progress> progress_;
  observe::StepTimer timer_;
  observe::StepTimes times_;

  std::int64_t step_ = 0, epoch_ = 0, in_epoch_ = 0;  // in_epoch_: batches
  std::int64_t epoch_steps_ = 0;  // batches of this epoch; the batch may have changed within it
  std::int64_t saved_step_ = -1, evaluated_step_ = -1;
  double epoch_loss_ = 0, epoch_samples_ = 0;    // the samples whose losses are in epoch_loss_
  double training_s_ = 0, trained_samples_ = 0;  // of this process
  Throughput throughput_;
  Clock::time_point window_began_;  // at the last look(); evaluations and saves do not count
  double window_samples_ = 0;
  double rate_samples_ = 0, rate_seconds_ = 0;  // since the launcher was told the last rate
  std::optional<double> grad_norm_;             // of the last step
  observe::Progress::Values shown_;             // on the progress line
  observe::Progress::Values logged_;            // the part of it that callbacks have logged
  std::optional<double> step_loss_;             // of the last step, if look() has reduced it
  bool stop_ = false, folder_gone_ = false, told_end_ = false;
  // Times and bytes of the steps so far (loop_plan.cc).
  std::vector<float> step_seconds_;  // of the last ones
  std::int64_t counted_ = 0;
  double counted_bytes_ = 0;
  MeasuredRun measured_;
  std::optional<PlanWatch> watch_;
  Answer answer_;
  RankParts window_;  // sums of this rank
  std::int64_t window_steps_ = 0;
  bool changes_plan_ = false;
  // What all workers have done, where they take batches when they are ready.
  struct Shared {
    strategy::SharedBatches::Done met, reported;  // at the last meeting and the last report
    Clock::time_point reported_at, looked_at;
    std::int64_t begin = 0, next_report = 0;  // steps within the epoch
    strategy::Staleness staleness;            // of this rank, that add_shared() has counted
    std::int64_t dropped = 0;
    bool wishes_to_stop = false;
  } shared_;
  StragglerWatch stragglers_;
  std::int64_t skipped_in_a_row_ = 0;
  std::map<std::vector<int>, int> found_wrong_;  // how often each of the ranks, or one of them, was
  bool is_finite_ = true;  // loss and gradients of the last step that look() reduced
  Clock::time_point saved_at_ = Clock::now();
  Clock::time_point ranks_shown_{};  // when ranks.json was last written
  bool save_due_ = false;            // checkpoint_minutes have passed, or a callback has asked
  Evaluation evaluation_;
};

}  // namespace weft::train::internal
