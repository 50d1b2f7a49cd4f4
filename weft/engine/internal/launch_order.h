// Plans the buckets of gradients and the order of sending them, from measured times. Pure
// functions.
//
// A link sends one bucket after the other. backward() hides the transfers during it. The next
// forward() hides the remaining ones if they arrive before their first use. So whenever the link is
// free, it sends, among the gradients that are ready, those that the next forward() needs first.
// These are the last layers while nothing else is ready, and then front layers first (Jayarajan et
// al. 2019, P3; Peng et al. 2019, ByteScheduler). Ranks cannot decide this at run time, since
// collectives need the same order on all ranks. So the schedule is computed beforehand, from times
// on which all ranks have agreed.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine::internal {

// Seconds. A step begins when the first gradient is ready.
struct StepTimes {
  std::vector<double> ready;  // by parameter: time of its gradient
  double backward = 0;        // duration of backward
  // by parameter: its first use by forward, counted from the end of backward without any waiting.
  // Empty if step() waits for all of them
  std::vector<double> needed;
};

struct LinkCost {
  double latency = 0;  // seconds of an empty collective
  double element = 0;  // additional seconds per float32
};

// A bucket, as the planner sees it.
struct TimedBucket {
  double ready = 0, needed = 0;  // seconds from the start of the step
  double transfer = 0;
};
std::vector<TimedBucket> timed_buckets(const std::vector<std::vector<int>>& buckets,
                                       const std::vector<std::int64_t>& sizes,
                                       const StepTimes& times, const LinkCost& link);

struct Launches {
  std::vector<int> order;  // of buckets
  double exposed = 0;      // seconds of a step that are not hidden
};
// `forward`: the next forward() waits bucket by bucket, instead of step().
Launches order_launches(const std::vector<TimedBucket>& buckets, double backward, bool forward);

}  // namespace weft::engine::internal
