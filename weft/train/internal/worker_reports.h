// What workers of an asynchronous strategy have done: each rank adds to sums in the memory that
// ranks share, or in the store of the job. Rank 0 reports what it finds there.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "weft/comm/group.h"
#include "weft/strategy/shared_batches.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/run_count.h"
#include "weft/train/internal/run_output.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class WorkerReports {
 public:
  // All must outlive it. The learner has shared() batches.
  WorkerReports(const Options& options, Group world, Learner& learner, RunOutput& output)
      : options_(options), world_(std::move(world)), learner_(learner), output_(output) {}

  // Workers take batches from now on, until they meet.
  void begin(const RunCount& at);
  // Adds a step of this rank.
  void add(const StepLog::Step& step);
  // On rank 0: writes one record for the batches that all workers have done since the last one,
  // every options.log_every of them. `last`: always.
  void report(const RunCount& at, bool last);
  // Adds to `seen` what all workers have done since they met last, and returns the number of their
  // samples. Call it on all ranks, when they have met.
  double take_sums(StepLog::Seen& seen);
  // Of the run, until the workers met last.
  LeftOut left_out() const;
  void restore(const LeftOut& before) { before_ = before; }
  // Logs how stale exchanges were, and how many batches each worker took. Collective.
  void show_staleness(const RunCount& at) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Done = strategy::SharedBatches::Done;

  const Options& options_;
  const Group world_;
  Learner& learner_;
  RunOutput& output_;
  LeftOut before_;       // in sessions before this one
  Done met_, reported_;  // of all ranks, at the last meeting and at the last report
  Clock::time_point reported_at_;
  std::int64_t begin_ = 0, next_report_ = 0;  // steps within the epoch
  strategy::Staleness staleness_;             // of this rank, that add() has counted
  std::int64_t dropped_ = 0;
  std::optional<double> grad_norm_;  // of the last step of this rank
};

}  // namespace weft::train::internal
