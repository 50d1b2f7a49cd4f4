// For tests that assert a time. Their suite's name ends in "Timing", so that they run while no
// other test does.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <new>

#include "weft/base/deadline.h"

namespace weft {

// The longest of the times that ranks report. Ranks may be threads, or processes forked while this
// lives.
class SlowestRank {
 public:
  using Duration = Deadline::Clock::duration;

  SlowestRank() {
    void* const page =
        ::mmap(nullptr, sizeof(Ticks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    longest_ = new (page) Ticks(kNone);
  }
  SlowestRank(const SlowestRank&) = delete;
  SlowestRank& operator=(const SlowestRank&) = delete;
  ~SlowestRank() { ::munmap(longest_, sizeof(Ticks)); }

  void report(Duration time) {
    Duration::rep known = longest_->load();
    while (known < time.count() && !longest_->compare_exchange_weak(known, time.count())) {
    }
  }
  void report_since(Deadline::Clock::time_point start) { report(Deadline::Clock::now() - start); }

  // Duration::max() where no rank has reported.
  Duration time() const {
    return longest_->load() == kNone ? Duration::max() : Duration(longest_->load());
  }

 private:
  using Ticks = std::atomic<Duration::rep>;
  static constexpr Duration::rep kNone = -1;

  Ticks* longest_;  // shared with forked processes
};

// Runs `attempt` until its slowest rank took less than `bound`, at most three times: the best of
// three. Whatever else the attempt expects has to hold each time.
inline void expect_within(SlowestRank::Duration bound,
                          const std::function<void(SlowestRank&)>& attempt) {
  SlowestRank::Duration best = SlowestRank::Duration::max();
  for (int run = 0; run < 3 && best >= bound; ++run) {
    SlowestRank slowest;
    attempt(slowest);
    if (testing::Test::HasFatalFailure()) return;
    best = std::min(best, slowest.time());
  }
  const auto ms = [](SlowestRank::Duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  EXPECT_LT(best, bound) << "the best of three runs took " << ms(best) << " ms; the bound is "
                         << ms(bound) << " ms";
}

}  // namespace weft
