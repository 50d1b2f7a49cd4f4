// Monotonic time. Deadline: a point by which a wait must end; every wait in weft takes one.
#pragma once

#include <chrono>

namespace weft {

// Seconds of the monotonic clock, for differences.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline in(std::chrono::nanoseconds timeout) { return Deadline(Clock::now() + timeout); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  bool passed() const { return Clock::now() >= when_; }
  // Zero when it has passed.
  std::chrono::nanoseconds left() const {
    const auto left = when_ - Clock::now();
    return left.count() > 0 ? left : std::chrono::nanoseconds(0);
  }
  // Whole milliseconds, rounded up, for poll().
  int left_ms() const {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
    return ms > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(ms);
  }
  Clock::time_point when() const { return when_; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace weft
