// Chooses between two ways to do the same operation by their measured times.
//
// Which way is faster depends on where the ranks run: on cores that share a cache, moving a cache
// line costs little; on others, it costs a multiple. So each size class tries both ways, uses the
// faster one, and tries the other one again now and then, since threads move between cores. All
// ranks report the same times, so that they choose the same way.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weft::net::internal {

enum class Route : std::uint8_t {
  kStaged,      // copied through staging memory
  kSingleCopy,  // the kernel copies from the peer's memory
};

class RouteChoice {
 public:
  // The way for the next call with `bytes` of data.
  Route next(std::uint64_t bytes) {
    Class& one = of(bytes);
    const std::uint32_t call = one.calls++;
    if (call < 2 * kTries) return call % 2 == 0 ? Route::kStaged : Route::kSingleCopy;
    const bool staged = one.best[0] <= one.best[1];
    const double fast = one.best[staged ? 0 : 1], slow = one.best[staged ? 1 : 0];
    // So many calls between two tries that the tries cost a hundredth of the time.
    // No time is known if all tries have failed.
    const double calls = fast > 0 ? 100 * (slow - fast) / fast : kMinAgain;
    const auto between = static_cast<std::uint32_t>(std::clamp(calls, kMinAgain, kMaxAgain));
    return staged != (call % between == 0) ? Route::kStaged : Route::kSingleCopy;
  }

  // Reports the time of such a call: of the slowest rank. A time above the best one so far may be
  // an interruption, so it counts only by degrees.
  void report(std::uint64_t bytes, Route route, double nanoseconds) {
    double& best = of(bytes).best[static_cast<std::size_t>(route)];
    const double mean = nanoseconds / static_cast<double>(std::max<std::uint64_t>(bytes, 1));
    best = best == 0 ? mean : std::min(mean, best * kRise);
  }

  static constexpr std::uint32_t kTries = 3;  // first calls of a class, each way
  // Calls between two tries of the slower way.
  static constexpr double kMinAgain = 8, kMaxAgain = 128;
  static constexpr double kRise = 1.125;

 private:
  struct Class {
    std::uint32_t calls = 0;
    std::array<double, 2> best = {};  // nanoseconds a byte, by route
  };
  Class& of(std::uint64_t bytes) {
    return classes_[static_cast<std::size_t>(std::bit_width(bytes))];
  }

  std::array<Class, 65> classes_;  // by the bits of the number of bytes
};

// The choices of a group, one for each collective. The time of an operation is known to all ranks
// only at the next one, so the last operation is kept until then.
class Routes {
 public:
  static constexpr std::size_t kCollectives = 16;

  // The way of the next operation of this collective. `slowest`: the longest time in nanoseconds
  // that a rank took for the last one.
  Route next(std::size_t collective, std::uint64_t bytes, std::int64_t slowest) {
    if (bytes_ > 0) choices_[collective_].report(bytes_, route_, static_cast<double>(slowest));
    collective_ = collective;
    bytes_ = bytes;
    return route_ = choices_.at(collective).next(bytes);
  }
  // Time of this rank's last operation.
  void took(std::chrono::nanoseconds time) { took_ = time; }
  std::chrono::nanoseconds time() const { return took_; }

 private:
  std::array<RouteChoice, kCollectives> choices_;
  std::size_t collective_ = 0;
  std::uint64_t bytes_ = 0;
  Route route_ = Route::kStaged;
  std::chrono::nanoseconds took_{};
};

}  // namespace weft::net::internal
