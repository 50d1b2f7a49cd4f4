#include "weft/parallel/compose/loss_scale.h"

#include <limits>

#include "weft/base/error.h"

namespace weft::parallel {

LossScale::LossScale(const LossScaleOptions& options) : options_(options), scale_(options.initial) {
  WEFT_REQUIRE(options.initial > 0, "loss scale: the initial scale must be above 0");
  WEFT_REQUIRE(options.growth > 1 && options.backoff > 0 && options.backoff < 1,
               "loss scale: growth must be above 1, and backoff between 0 and 1");
  WEFT_REQUIRE(options.interval >= 1, "loss scale: the interval must be at least one step");
}

void LossScale::update(bool finite) {
  if (!finite) {
    scale_ *= options_.backoff;
    good_steps_ = 0;
    return;
  }
  if (++good_steps_ < options_.interval) return;
  good_steps_ = 0;
  const double grown = scale_ * options_.growth;
  if (grown <= static_cast<double>(std::numeric_limits<float>::max())) scale_ = grown;
}

void LossScale::set(double scale, std::int64_t good_steps) {
  WEFT_REQUIRE(scale > 0 && good_steps >= 0,
               "loss scale: the loaded scale must be above 0, and its good steps at least 0");
  scale_ = scale;
  good_steps_ = good_steps;
}

}  // namespace weft::parallel
