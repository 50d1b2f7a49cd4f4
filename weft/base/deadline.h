// Monotonic time. Deadline: a point by which a wait must end; every wait in weft takes one.
#pragma once

#include <algorithm>
#include <chrono>
#include <type_traits>

namespace weft {

// The longest timeout. The clock counts nanoseconds, and ends after 292 years.
inline constexpr std::chrono::hours kLongestTimeout{24 * 365 * 100};

// Returns `timeout`, at most kLongestTimeout. Use it for a timeout from a program before it is
// converted to nanoseconds. Python's timedelta.max arrives as a very long negative one, and counts
// as the longest.
constexpr std::chrono::milliseconds bounded_timeout(std::chrono::milliseconds timeout) {
  if (timeout > kLongestTimeout || timeout < -kLongestTimeout) return kLongestTimeout;
  return timeout;
}

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

  // At most kLongestTimeout from now.
  template <class Rep, class Period>
  static Deadline in(std::chrono::duration<Rep, Period> timeout) {
    using Exact = std::common_type_t<decltype(timeout), std::chrono::hours>;
    const auto left = std::clamp<Exact>(timeout, -kLongestTimeout, kLongestTimeout);
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(left));
  }
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
