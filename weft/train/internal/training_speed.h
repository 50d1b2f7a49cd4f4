// The samples per second of training. Evaluations and checkpoints do not count.
#pragma once

#include <chrono>
#include <optional>

#include "weft/base/deadline.h"

namespace weft::train::internal {

class TrainingSpeed {
 public:
  using Clock = std::chrono::steady_clock;

  // Of this process. A recovery, other ranks or another plan begin another session.
  struct Totals {
    Clock::time_point started = Clock::now();
    double seconds = 0, samples = 0;  // of training
  };
  const Totals& totals() const { return totals_; }
  // Goes on from the totals of the session before.
  void go_on_from(const Totals& before) { totals_ = before; }

  // Steps begin, or go on.
  void begin() { counted_ = window_began_ = Clock::now(); }
  // They pause, or end.
  void end() { count(); }
  // The time since `start`, between begin() and end(), does not count.
  void leave_out(Clock::time_point start) {
    const auto left_out = Clock::now() - start;
    counted_ += left_out;
    window_began_ += left_out;
  }
  // Samples of all ranks: for mean(), and for take_window(). An error may end the session without
  // end(). So the time of each step counts here.
  void add(double samples) {
    count();
    totals_.samples += samples;
  }
  void add_to_window(double samples) { window_samples_ += samples; }

  // Samples per second of this process.
  double mean() const { return totals_.seconds > 0 ? totals_.samples / totals_.seconds : 0; }
  // Seconds of this process, with all that does not count.
  double all_seconds() const { return seconds_since(totals_.started); }

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
  void count() {
    const auto now = Clock::now();
    totals_.seconds += std::chrono::duration<double>(now - counted_).count();
    counted_ = now;
  }

  Totals totals_;
  Clock::time_point counted_, window_began_;  // until counted_, the time is in totals_
  double window_samples_ = 0;
  Window since_rate_;
};

}  // namespace weft::train::internal
