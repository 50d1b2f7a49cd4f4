#include "weft/train/internal/stragglers.h"

#include <algorithm>

namespace weft::train::internal {

std::vector<double> awaited_shares(std::span<const observe::RankState> ranks) {
  std::vector<double> shares(ranks.size(), 0);
  if (ranks.size() < 2) return shares;
  double waited = 0, step = 0;
  for (const observe::RankState& rank : ranks) {
    waited += rank.waited_ms;
    step = std::max(step, rank.step_ms);
  }
  for (std::size_t i = 0; step > 0 && i < ranks.size(); ++i) {
    const double own = ranks[i].waited_ms,
                 others = (waited - own) / static_cast<double>(ranks.size() - 1);
    shares[i] = std::clamp((others - own) / step, -1.0, 1.0);
  }
  return shares;
}

std::optional<std::vector<int>> StragglerWatch::add(std::int64_t steps,
                                                    const std::vector<double>& shares) {
  sum_.resize(shares.size());
  steps_ += steps;
  const auto counted = static_cast<double>(std::min(steps, steps_));
  if (counted <= 0) return std::nullopt;
  for (std::size_t i = 0; i < shares.size(); ++i) sum_[i] += counted * shares[i];
  if (steps_ < kSteps) return std::nullopt;
  std::vector<int> slow;
  for (int rank = 0; rank < static_cast<int>(sum_.size()); ++rank) {
    const bool told = std::find(told_.begin(), told_.end(), rank) != told_.end();
    const double least = told ? kSlow / 2 : kSlow;
    if (sum_[static_cast<std::size_t>(rank)] >= least * static_cast<double>(steps_))
      slow.push_back(rank);
  }
  agreed_ = (before_ == slow ? agreed_ : 0) + steps_ / kSteps;
  shares_ = sum_;
  for (double& share : shares_) share /= static_cast<double>(steps_);
  before_ = slow;
  sum_.assign(sum_.size(), 0);
  steps_ = 0;
  if (agreed_ < needed_ || slow == told_) return std::nullopt;
  if (!told_.empty()) needed_ = std::min(2 * needed_, kMaxSamples);
  told_ = slow;
  return slow;
}

}  // namespace weft::train::internal
