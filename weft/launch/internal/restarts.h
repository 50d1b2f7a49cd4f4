// When the launcher starts a process of its own again that has ended.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "weft/base/deadline.h"

namespace weft::launch::internal {

// Pause before a process is started again that ended so many times in a row without running for
// 10 s.
std::chrono::milliseconds restart_pause(int failures);

class Restarts {
 public:
  using Time = Deadline::Clock::time_point;

  // The process has started.
  void began(Time now);
  // The process has ended.
  void ended(Time now);
  // Until when to wait with the next start. nullopt: no longer.
  std::optional<Time> pause(Time now) const;
  // Calls `start`. If it throws, since the machine has no process now: when to try it again.
  std::optional<Time> try_start(Time now, const std::function<void()>& start);
  // Ends in a row, each within 10 s of the start.
  int failures() const { return failures_; }

 private:
  Time started_{}, again_{};
  int failures_ = 0;
};

}  // namespace weft::launch::internal
