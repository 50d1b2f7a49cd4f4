#include "weft/strategy/internal/pace.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::strategy::internal {

Pace::Pace(const Strategy& strategy, Group world)
    : first_period_(strategy.period > 0 ? strategy.period : default_period(strategy.name)),
      sync_steps_(strategy.sync_steps),
      adapt_steps_(strategy.adapt_steps),
      world_(std::move(world)),
      numbers_(at::zeros({kNumbers}, at::kDouble)) {
  at(kPeriod) = static_cast<double>(first_period_);
}

void Pace::restored() {
  if (adapt_steps_ == 0) at(kPeriod) = static_cast<double>(first_period_);
}

std::int64_t Pace::period() const { return static_cast<std::int64_t>(at(kPeriod)); }

std::int64_t Pace::round_of(std::int64_t step) const {
  return step <= sync_steps_ ? step : sync_steps_ + (step - sync_steps_ + period() - 1) / period();
}

bool Pace::is_due(const Step& step) {
  const auto now = static_cast<double>(step.number);
  if (adapt_steps_ > 0) {
    sums_[0] += step.loss;
    sums_[1] += step.samples;
  }
  if (step.number > sync_steps_ && now < at(kLast) + at(kPeriod)) return false;
  at(kLast) = now;
  if (adapt_steps_ > 0 && now >= at(kAdapted) + static_cast<double>(adapt_steps_)) adapt(step);
  return true;
}

void Pace::adapt(const Step& step) {
  at::Tensor sums = at::tensor({sums_[0], sums_[1]}, at::kDouble);
  world_.all_reduce(sums);
  const double loss = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  at(kAdapted) = static_cast<double>(step.number);
  sums_ = {0, 0};
  if (!(loss > 0)) return;
  const double first = std::exchange(at(kFirstLoss), at(kFirstLoss) > 0 ? at(kFirstLoss) : loss);
  if (first <= 0) return;
  const double next = std::ceil(std::sqrt(loss / first) * static_cast<double>(first_period_));
  at(kPeriod) = next < at(kPeriod) ? next : std::max(1.0, std::ceil(at(kPeriod) / 2));
}

}  // namespace weft::strategy::internal
