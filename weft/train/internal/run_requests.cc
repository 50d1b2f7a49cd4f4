#include "weft/train/internal/run_requests.h"

#include <algorithm>

namespace weft::train::internal {

void RunRequests::start(std::int64_t step) {
  looked_step_ = step;
  next_look_ = step - step % options_.log_every + options_.log_every;
}

// Every log_every steps, and about once a second where steps are long, so that requests to stop,
// save or resize do not wait.
void RunRequests::looked(std::int64_t step, double step_s) {
  start(step);
  if (step_s > 0)
    next_look_ = std::min(next_look_, step + 1 + static_cast<std::int64_t>(1 / step_s));
}

bool RunRequests::poll_is_due(std::int64_t step) {
  const auto now = Clock::now();
  if (step < next_look_ && now - polled_at_ < std::chrono::seconds(1)) return false;
  polled_at_ = now;
  next_look_ = step + options_.log_every;
  return true;
}

bool RunRequests::polls() {
  if (!stops_ && options_.should_stop) stops_ = options_.should_stop();
  if (stops_ || rank_ != 0 || !resizes_) return stops_;
  const int ranks = launcher_.ranks();
  return ranks != 0 && ranks != ranks_;
}

}  // namespace weft::train::internal
