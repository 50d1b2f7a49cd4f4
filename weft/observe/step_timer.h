// Measures the phases of a training step. Each scope costs two clock readings. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>

#include "weft/observe/trace.h"

namespace weft::observe {

// kCommunication is exposed communication: time in which the step waits for peers and does not
// compute.
enum class Phase { kData, kForward, kBackward, kCommunication, kOptimizer };
inline constexpr std::size_t kPhases = 5;

// "data", "forward", "backward", "communication", "optimizer".
const char* to_string(Phase phase);

class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepTimer(std::function<Clock::time_point()> now = Clock::now) : now_(std::move(now)) {}

  // Adds its lifetime to a phase. Scopes may nest: the time of an inner scope counts for the inner
  // phase only. A trace records each scope as a span of category "phase".
  class Scope {
   public:
    Scope(StepTimer& timer, Phase phase);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const TraceScope trace_;
    StepTimer& timer_;
    Scope* outer_;
    std::size_t phase_;
    Clock::time_point start_;
    Clock::duration inner_{};
  };

  Scope time(Phase phase) { return Scope(*this, phase); }
  // Adds a time measured elsewhere.
  void add(Phase phase, std::chrono::nanoseconds took) {
    spent_[static_cast<std::size_t>(phase)] += took;
  }

  // Milliseconds of the phase since the last reset().
  double ms(Phase phase) const;
  void reset() { spent_ = {}; }

 private:
  std::function<Clock::time_point()> now_;
  std::array<std::chrono::nanoseconds, kPhases> spent_{};
  Scope* innermost_ = nullptr;
};

}  // namespace weft::observe
