// Which ranks the others wait for. The all-reduce makes the steps of all ranks equally long, so the
// time of a step does not tell. The time that a rank waits for its peers does: a slow rank arrives
// last, and waits least.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "weft/observe/run/metrics.h"

namespace weft::train::internal {

// By rank: the share of a step, -1 to 1, that the others wait for it. That is their mean waiting
// time less its own, over the time of a step; below 0 if it waits more than they do.
std::vector<double> awaited_shares(std::span<const observe::RankState> ranks);

// Decides when it is clear that ranks are slow. Pure.
class StragglerWatch {
 public:
  // A rank is slow if the others wait for it at least this share of a step, and stays slow down to
  // half of it.
  static constexpr double kSlow = 0.15;
  // Steps of a sample. Two samples in a row must agree, and twice as many each time that a slow
  // rank turns out not to stay so.
  static constexpr std::int64_t kSteps = 10;
  static constexpr std::int64_t kMaxSamples = 64;

  // Adds the mean shares of `steps` steps. Returns the slow ranks if they have changed since the
  // last answer; at first none are. The first kSteps steps do not count.
  std::optional<std::vector<int>> add(std::int64_t steps, const std::vector<double>& shares);
  // Mean share of the last sample.
  double share(int rank) const { return shares_.at(static_cast<std::size_t>(rank)); }

 private:
  std::vector<double> sum_, shares_;
  std::int64_t steps_ = -kSteps;
  std::vector<int> before_;  // of the last sample
  std::int64_t agreed_ = 0;  // samples in a row with the ranks of the last one
  std::int64_t needed_ = 2;
  std::vector<int> told_;
};

}  // namespace weft::train::internal
