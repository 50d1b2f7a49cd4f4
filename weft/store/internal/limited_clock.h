// The clock of a node: the sum of the limited steps of a clock that may jump.
//
// A step counts as at most kMaxStep: a jump of the clock ends a lease at most this early, and after
// a pause, members first hear what has come in the meantime. Invariant: the time never goes back.
#pragma once

#include <algorithm>

#include "weft/store/internal/raft_options.h"

namespace weft::store::internal {

class LimitedClock {
 public:
  static constexpr Time kMaxStep = std::chrono::milliseconds(200);

  // `trusts` true: a flaw, for tests of the tests.
  LimitedClock(Time owners, bool trusts) : last_(owners), most_(trusts ? Time::max() : kMaxStep) {}

  Time now() const { return now_; }
  void advance(Time owners) {
    now_ += std::clamp(owners - last_, Time(0), most_);
    last_ = owners;
  }
  // On the owner's clock: now, and when to advance at the latest to be in time for `when`.
  Time owners_now() const { return last_; }
  Time owners_time(Time when) const {
    return last_ + std::clamp(when - now_, Time(0), kMaxStep / 2);
  }

 private:
  Time now_{};
  Time last_;
  Time most_;
};

}  // namespace weft::store::internal
