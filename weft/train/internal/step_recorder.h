// Records the steps of a run: what each takes (times by phase, bytes, waiting), for the metrics,
// the progress line, and the comparison with the plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "weft/comm/group.h"
#include "weft/data/sampler.h"
#include "weft/observe/run/step_times.h"
#include "weft/observe/step_timer.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/run_count.h"
#include "weft/train/internal/run_output.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/step_measures.h"
#include "weft/train/internal/worker_reports.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class StepRecorder {
 public:
  // `options` and `output` must outlive it.
  StepRecorder(const Options& options, const Group& world, RunOutput& output)
      : options_(options), world_(world), output_(output), measures_(world) {}

  // Training begins. The learner must outlive the last step.
  void start(Learner& learner, const StepLog::Flops& flops);
  // Step `number` begins.
  void begin(std::int64_t number);
  observe::StepTimer& timer() { return timer_; }
  // It has ended. The record lacks `bad_gradient`.
  StepLog::Step end(Learner::Step done, std::int64_t epoch, double rate);
  // Takes the complete record.
  void add(StepLog::Step record);
  // For programs that watch the run from outside (WEFT_STEP_TIMES): `step` is done, and the next
  // batch starts `at`. `ready`: training is about to begin there.
  void note(std::int64_t step, const data::SamplerState& at, bool ready = false);
  // Shows what log() has reduced. With reports(), `seen` gets the sums of all workers instead.
  void show(StepLog::Seen& seen);

  StepMeasures& measures() { return measures_; }
  const StepMeasures& measures() const { return measures_; }
  // From start() on.
  StepLog& log() { return *log_; }
  const StepLog& log() const { return *log_; }
  // Of the run, until the ranks have met or looked last.
  LeftOut left_out() const;
  void restore(const LeftOut& before);
  // Null unless the strategy is asynchronous.
  WorkerReports* reports() { return reports_ ? &*reports_ : nullptr; }

 private:
  const Options& options_;
  const Group world_;
  RunOutput& output_;
  StepMeasures measures_;
  std::optional<StepLog> log_;
  std::optional<WorkerReports> reports_;
  // Of the current step.
  observe::StepTimer timer_;
  observe::StepTimes times_;
  std::int64_t number_ = 0;
  std::chrono::steady_clock::time_point began_;
  comm::Traffic traffic_;  // at the begin, like waited_ns_
  std::int64_t waited_ns_ = 0;
};

}  // namespace weft::train::internal
