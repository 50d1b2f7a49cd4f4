// When the workers exchange.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "weft/comm/group.h"
#include "weft/strategy/strategy.h"

namespace weft::strategy::internal {

// Every `period` steps; after each of the first sync_steps steps. With adapt_steps, the period
// follows the loss:
//
//   AdaComm (Wang and Joshi: Adaptive communication strategies …, 2019, eq. 17 and 18)
//   period = ceil(sqrt(loss / first loss) * first period); where that is not shorter, half of it
//
// `loss` is the mean over all workers since the period was last changed; the first loss is the mean
// over the first adapt_steps.
class Pace {
 public:
  Pace(const Strategy& strategy, Group world);

  // Call it after numbers() were loaded: without adapt_steps, the period is that of the options.
  void restored();
  // True if the workers exchange after this step. Collective if the period changes.
  bool is_due(const Step& step);
  std::int64_t period() const;
  // Number of the exchange after this step: larger than that of the exchange before, by 1 while the
  // period stays. It follows from the step and the period alone, so it is the same in a run that is
  // resumed with the same period.
  std::int64_t round_of(std::int64_t step) const;
  // float64 [kNumbers]: state, in place.
  const at::Tensor& numbers() const { return numbers_; }

 private:
  enum { kPeriod, kLast, kAdapted, kFirstLoss, kNumbers };
  double& at(int number) const { return numbers_.mutable_data_ptr<double>()[number]; }
  void adapt(const Step& step);

  const std::int64_t first_period_, sync_steps_, adapt_steps_;
  const Group world_;
  const at::Tensor numbers_;
  // Loss and samples of this rank since the period was last changed. They are not saved, so a
  // resumed run takes the mean over fewer steps once.
  std::array<double, 2> sums_{};
};

}  // namespace weft::strategy::internal
