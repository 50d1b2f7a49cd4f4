// Balance: divides batches over ranks of unequal speed (CPUs beside GPUs, old machines beside new
// ones), so that all ranks end a step at the same time.
//
// A rank's speed is its smoothed samples / seconds. Its share of the next batch is proportional to
// its speed, as in LB-BSP (Chen et al. 2020); smoothing 1 is LB-BSP's memoryless form. The weights
// are a pure function of the measurements: ranks with the same gathered measurements compute the
// same weights.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::data {

struct BalanceOptions {
  double smoothing = 0.5;  // Weight of a new measurement, in (0, 1].
  // Smallest share of a rank, as a fraction of an even share. A slow rank then still gets samples
  // and its speed is measured again.
  double smallest_share = 0.02;
};

class Balance {
 public:
  // Throws Error(kInvalidArgument) for a world below 1 or options out of their range.
  explicit Balance(int world, BalanceOptions options = {});

  // Updates the speeds with the samples of each rank in a step and the seconds that the rank
  // computed, without waiting for peers. A rank with no samples or no time keeps its speed. Throws
  // Error(kInvalidArgument) if a vector does not have one element per rank.
  void measure(const std::vector<std::int64_t>& samples, const std::vector<double>& seconds);

  // Returns the weights for Sampler::set_weights(), with sum 1. They are even until every rank has
  // been measured.
  std::vector<double> weights() const;

 private:
  BalanceOptions options_;
  std::vector<double> speeds_;  // Samples per second. 0: not measured yet.
};

}  // namespace weft::data
