#include "weft/train/internal/step_recorder.h"

#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/fault/failpoint.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {

void StepRecorder::start(Learner& learner, const StepLog::Flops& flops) {
  log_.emplace(world_, output_.metrics(), flops);
  if (learner.shared() != nullptr) reports_.emplace(options_, world_, learner, output_);
}

void StepRecorder::begin(std::int64_t number) {
  number_ = number;
  began_ = std::chrono::steady_clock::now();
  set_failpoint_step(number);
  observe::set_step(number);
  failpoint("step.begin");
  timer_.reset();
  traffic_ = world_.traffic();
  waited_ns_ = observe::waited_ns();
}

StepLog::Step StepRecorder::end(Learner::Step done, std::int64_t epoch, double rate) {
  StepLog::Step record{.step = number_,
                       .epoch = epoch,
                       .rate = rate,
                       .samples = done.samples,
                       .seconds = seconds_since(began_),
                       .ms = {},
                       .losses = std::move(done.losses),
                       .grad_norm = done.grad_norm,
                       .noise = done.noise};
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase)
    record.ms[phase] = timer_.ms(static_cast<observe::Phase>(phase));
  const comm::Traffic now = world_.traffic();
  record.sent_bytes = static_cast<double>(now.sent_bytes - traffic_.sent_bytes);
  record.shared_bytes = static_cast<double>(now.shared_bytes - traffic_.shared_bytes);
  record.skipped = done.skipped;
  record.waited_s = 1e-9 * static_cast<double>(observe::waited_ns() - waited_ns_);
  return record;
}

void StepRecorder::add(StepLog::Step record) {
  measures_.add(record);
  if (reports_) return reports_->add(record);
  output_.speed().add(record.samples);
  output_.speed().add_to_window(record.samples);
  log_->add(std::move(record));
}

// Rank 0 has shown the batches of workers before (WorkerReports::report()).
void StepRecorder::show(StepLog::Seen& seen) {
  if (reports_) {
    output_.speed().add(reports_->take_sums(seen));
  } else {
    output_.show(seen);
  }
}

LeftOut StepRecorder::left_out() const {
  return reports_ ? reports_->left_out() : LeftOut{.skipped = log_->skipped(), .dropped = 0};
}

void StepRecorder::restore(const LeftOut& before) {
  if (reports_) {
    reports_->restore(before);
  } else {
    log_->restore_skipped(before.skipped);
  }
}

void StepRecorder::note(std::int64_t step, const data::SamplerState& at, bool ready) {
  if (!times_.is_on()) return;
  times_.add({.ranks = world_.size(),
              .group = world_.epoch(),
              .step = step,
              .epoch = at.epoch,
              .position = at.position,
              .ready = ready});
}

}  // namespace weft::train::internal
