// Shares for ranks of unequal speed (CPUs beside GPUs, old machines beside new ones), so that all
// end a step at the same time.
//
// Each rank's speed is what it was measured to do, samples / seconds, smoothed; its share of the
// next batch is proportional to it (as in LB-BSP, Chen et al. 2020, whose memoryless form this is
// with smoothing 1). A pure function of what was measured: ranks that give the same measurements,
// gathered, get the same weights.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::data {

struct BalanceOptions {
  double smoothing = 0.5;  // of a new measurement against what was known, in (0, 1]
  double smallest_share =
      // no rank gets less than this part of an even share, so that its speed goes on being measured
      0.02;
};

class Balance {
 public:
  // Throws Error(kInvalidArgument) for a world below 1 or options out of their range.
  explicit Balance(int world, BalanceOptions options = {});

  // What each rank did in a step: samples, and the seconds that it computed (waiting for peers not
  // counted). A rank with no samples, or no time, keeps its speed. Throws Error(kInvalidArgument)
  // where the lengths are not the world.
  void measure(const std::vector<std::int64_t>& samples, const std::vector<double>& seconds);

  // For Sampler::set_weights(): sums to 1; even before anything has been measured of every rank.
  std::vector<double> weights() const;

 private:
  BalanceOptions options_;
  std::vector<double> speeds_;  // samples a second; 0: not known
};

}  // namespace weft::data
