#include "weft/data/balance.h"

#include <algorithm>
#include <string>

#include "weft/base/error.h"

namespace weft::data {

Balance::Balance(int world, BalanceOptions options) : options_(options) {
  WEFT_REQUIRE(world >= 1,
               "Balance: the world must have at least one rank, got " + std::to_string(world));
  WEFT_REQUIRE(options.smoothing > 0 && options.smoothing <= 1,
               "Balance: smoothing must be in (0, 1]");
  WEFT_REQUIRE(options.smallest_share >= 0 && options.smallest_share <= 1,
               "Balance: smallest_share must be in [0, 1]");
  speeds_.resize(static_cast<std::size_t>(world));
}

void Balance::measure(const std::vector<std::int64_t>& samples,
                      const std::vector<double>& seconds) {
  WEFT_REQUIRE(
      samples.size() == speeds_.size() && seconds.size() == speeds_.size(),
      "Balance: expected one measurement for each of " + std::to_string(speeds_.size()) + " ranks");
  for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
    if (samples[rank] <= 0 || !(seconds[rank] > 0)) continue;
    const double measured = static_cast<double>(samples[rank]) / seconds[rank];
    speeds_[rank] = speeds_[rank] == 0
                        ? measured
                        : speeds_[rank] + options_.smoothing * (measured - speeds_[rank]);
  }
}

std::vector<double> Balance::weights() const {
  const double even = 1.0 / static_cast<double>(speeds_.size());
  std::vector<double> weights(speeds_.size(), even);
  if (std::find(speeds_.begin(), speeds_.end(), 0.0) != speeds_.end()) return weights;
  const double least = even * options_.smallest_share;
  // Ranks below the smallest share get it, and the others divide the rest.
  std::vector<bool> is_least(speeds_.size());
  for (bool moved = true; moved;) {
    double rest = 1, speed = 0;
    for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
      if (is_least[rank])
        rest -= least;
      else
        speed += speeds_[rank];
    }
    moved = false;
    for (std::size_t rank = 0; rank < speeds_.size(); ++rank) {
      weights[rank] = is_least[rank] ? least : rest * speeds_[rank] / speed;
      if (weights[rank] >= least) continue;
      is_least[rank] = moved = true;
    }
  }
  return weights;
}

}  // namespace weft::data
