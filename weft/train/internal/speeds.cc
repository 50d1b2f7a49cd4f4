#include "weft/train/internal/speeds.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>

namespace weft::train::internal {

void Speeds::add(std::int64_t samples, double seconds) {
  samples_ += samples;
  seconds_ += seconds;
}

std::optional<std::vector<double>> Speeds::rebalance() {
  const auto world = static_cast<std::size_t>(world_.size());
  at::Tensor mine = at::empty({2}, at::kDouble), all = at::empty({2 * world_.size()}, at::kDouble);
  mine.data_ptr<double>()[0] = static_cast<double>(std::exchange(samples_, 0));
  mine.data_ptr<double>()[1] = std::exchange(seconds_, 0);
  world_.all_gather(all, mine);
  std::vector<std::int64_t> samples(world);
  std::vector<double> seconds(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    samples[rank] = std::llround(all.const_data_ptr<double>()[2 * rank]);
    seconds[rank] = all.const_data_ptr<double>()[2 * rank + 1];
  }
  balance_.measure(samples, seconds);
  const auto weights = balance_.weights();
  const double least = 0.05 / static_cast<double>(world);
  bool moved = false;
  for (std::size_t rank = 0; rank < world; ++rank) moved = moved || std::abs(weights[rank] - given_[rank]) >= least;
  if (!moved) return std::nullopt;
  given_ = weights;
  return weights;
}

}  // namespace weft::train::internal
