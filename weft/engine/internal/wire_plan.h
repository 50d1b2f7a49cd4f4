// Which buckets gradients travel in and in which order these leave, from measured times. Pure.
//
// A link carries one bucket after the other. What leaves during backward() is hidden by it; what is
// left over can be hidden by the next forward() if it comes before it is used. So whenever the link
// is free it takes, of the gradients that are there, those that the next forward() needs first: the
// last layers' while nothing else is ready, and from then on front layers first (Jayarajan et al.
// 2019, P3; Peng et al. 2019, ByteScheduler). Ranks cannot decide that one by one as it comes,
// since collectives need one order on all of them, so the schedule is computed beforehand, from
// times on which they have agreed.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::parallel::internal {

// Seconds. A step begins when the first gradient is ready.
struct StepTimes {
  std::vector<double> ready;  // by parameter: its gradient
  double backward = 0;        // all of backward
  std::vector<double>
      // by parameter: its first use by forward, counted from the end of backward without any
      // waiting. Empty where step() waits for all of them
      needed;
};

struct LinkCost {
  double latency = 0;  // seconds of a collective of no size
  double element = 0;  // seconds a float32 more
};

// A bucket as the link sees it.
struct Cargo {
  double ready = 0, needed = 0;  // needed: from the beginning of the step
  double transfer = 0;
};
std::vector<Cargo> cargo_of(const std::vector<std::vector<int>>& buckets,
                            const std::vector<std::int64_t>& sizes, const StepTimes& times,
                            const LinkCost& link);

struct Launches {
  std::vector<int> order;  // of buckets
  double exposed = 0;      // seconds a step that nothing hides
};
// `forward`: step() does not wait, the next forward() does, bucket by bucket.
Launches plan_launches(const std::vector<Cargo>& buckets, double backward, bool forward);

}  // namespace weft::parallel::internal
