#include "weft/engine/internal/launch_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "weft/engine/internal/index.h"

namespace weft::engine::internal {
namespace {

// Returns the bucket to send next if the link is free from `now` on.
int next_of(const std::vector<TimedBucket>& buckets, const std::vector<int>& waiting, double now) {
  double earliest = std::numeric_limits<double>::infinity();
  for (int bucket : waiting) earliest = std::min(earliest, buckets[index(bucket)].ready);
  const double start = std::max(now, earliest);
  int best = -1;
  for (int bucket : waiting) {
    if (buckets[index(bucket)].ready > start) continue;
    if (best < 0 || buckets[index(bucket)].needed < buckets[index(best)].needed) best = bucket;
  }
  return best;
}

// Returns how much longer the next forward takes because it waits for buckets that have not
// arrived.
double stalls(const std::vector<TimedBucket>& buckets, const std::vector<double>& arrival) {
  std::vector<int> by_need(buckets.size());
  std::iota(by_need.begin(), by_need.end(), 0);
  std::stable_sort(by_need.begin(), by_need.end(), [&](int a, int b) {
    return buckets[index(a)].needed < buckets[index(b)].needed;
  });
  double late = 0;
  for (int bucket : by_need)
    late = std::max(late, arrival[index(bucket)] - buckets[index(bucket)].needed);
  return late;
}

}  // namespace

std::vector<TimedBucket> timed_buckets(const std::vector<std::vector<int>>& buckets,
                                       const std::vector<std::int64_t>& sizes,
                                       const StepTimes& times, const LinkCost& link) {
  std::vector<TimedBucket> timed;
  for (const auto& bucket : buckets) {
    TimedBucket one{0, std::numeric_limits<double>::infinity(), link.latency};
    for (int param : bucket) {
      one.ready = std::max(one.ready, times.ready[index(param)]);
      if (!times.needed.empty())
        one.needed = std::min(one.needed, times.backward + times.needed[index(param)]);
      one.transfer += static_cast<double>(sizes[index(param)]) * link.element;
    }
    timed.push_back(one);
  }
  return timed;
}

Launches order_launches(const std::vector<TimedBucket>& buckets, double backward, bool forward) {
  Launches launches;
  std::vector<int> waiting(buckets.size());
  std::iota(waiting.begin(), waiting.end(), 0);
  std::vector<double> arrival(buckets.size(), 0);
  double now = 0;
  while (!waiting.empty()) {
    const int bucket = next_of(buckets, waiting, now);
    now = std::max(now, buckets[index(bucket)].ready) + buckets[index(bucket)].transfer;
    arrival[index(bucket)] = now;
    launches.order.push_back(bucket);
    waiting.erase(std::find(waiting.begin(), waiting.end(), bucket));
  }
  launches.exposed = forward ? stalls(buckets, arrival) : std::max(0.0, now - backward);
  return launches;
}

}  // namespace weft::engine::internal
