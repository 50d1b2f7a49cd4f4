// The samples per second of training. Evaluations and checkpoints do not count.
#pragma once

#include <chrono>
#include <optional>

#include "weft/base/deadline.h"

namespace weft::train::internal {

class TrainingSpeed {
 public:
  using Clock = std::chrono::steady_clock;

  // Steps begin, or go on.
  void begin() { began_ = window_began_ = Clock::now(); }
  // They pause, or end.
  void end() { seconds_ += seconds_since(began_); }
  // The time since `start`, between begin() and end(), does not count.
  void leave_out(Clock::time_point start) {
    const auto left_out = Clock::now() - start;
    seconds_ -= std::chrono::duration<double>(left_out).count();
    window_began_ += left_out;
  }
  // Samples of all ranks: for mean(), and for take_window().
  void add(double samples) { samples_ += samples; }
  void add_to_window(double samples) { window_samples_ += samples; }

  // Samples per second of this process.
  double mean() const { return seconds_ > 0 ? samples_ / seconds_ : 0; }
  // Seconds of this process, with all that does not count.
  double all_seconds() const { return seconds_since(started_); }

  // Training since the last call, or since begin().
  struct Window {
    double samples = 0, seconds = 0;
  };
  Window take_window() {
    const auto now = Clock::now();
    const Window window{window_samples_,
                        std::chrono::duration<double>(now - window_began_).count()};
    window_began_ = now;
    window_samples_ = 0;
    return window;
  }
  // Adds a window. Returns the samples per second since the last answer, about once a second.
  std::optional<double> take_rate(const Window& window) {
    since_rate_.samples += window.samples;
    since_rate_.seconds += window.seconds;
    if (since_rate_.seconds < 1) return std::nullopt;
    const double rate = since_rate_.samples / since_rate_.seconds;
    since_rate_ = {};
    return rate;
  }

 private:
  const Clock::time_point started_ = Clock::now();
  Clock::time_point began_, window_began_;
  double seconds_ = 0, samples_ = 0, window_samples_ = 0;
  Window since_rate_;
};

}  // namespace weft::train::internal
