// Callbacks, and an end before the last epoch.
#include <algorithm>
#include <utility>

#include "weft/train/internal/loop.h"

namespace weft::train::internal {

void Loop::tell_step(const StepReport& report) {
  // The program may read weights in ways that the overlap with forward does not see (data_ptr()).
  if (options_.on_step) learner_->model().wait_for_weights();
  decisions_->callbacks().step_done(report);
  add_logged();
}

// After the evaluation of the epoch, before its checkpoint.
void Loop::tell_epoch(double train_loss) {
  EpochReport report{epoch_, step_, train_loss};
  if (evaluation_.samples > 0) {
    report.test_loss = evaluation_.loss;
    report.metrics = evaluation_.metrics;
  }
  const bool agrees = decisions_->callbacks().epoch_done(report);
  add_logged();
  if (!agrees) return;
  const Callbacks::Requests all = decisions_->callbacks().agree(world_);
  if (all.stop) end_early();
  save_due_ = save_due_ || all.save;
}

// Values that callbacks have logged, to the files and the progress line.
void Loop::add_logged() {
  const observe::Values logged = decisions_->callbacks().take_logged();
  if (logged.empty() || !metrics_) return;
  log_->add_program(step_, epoch_, logged);
  for (const auto& value : logged) {
    const auto same =
        std::ranges::find(logged_, value.first, [](const auto& one) { return one.first; });
    if (same == logged_.end()) {
      logged_.push_back(value);
    } else {
      *same = value;
    }
  }
}

void Loop::end_early() {
  if (is_complete()) return;
  decisions_->end();
  if (world_.rank() != 0 || std::exchange(told_end_, true)) return;
  const std::string& reason = decisions_->reason();
  log_info("training ends early: " + (reason.empty() ? "a callback has asked for it" : reason),
           {{"step", step_}, {"epoch", epoch_}});
}

}  // namespace weft::train::internal
