#include "weft/optim/noise_scale.h"

#include <cmath>

namespace weft::optim {

void NoiseScale::add(const Step& step) {
  const double b = step.small_batch, large = step.large_batch;
  if (!(b > 0 && large > b)) return;
  const double signal = (large * step.large_squares - b * step.small_squares) / (large - b),
               noise = (step.small_squares - step.large_squares) / (1 / b - 1 / large);
  if (!std::isfinite(signal) || !std::isfinite(noise)) return;
  state_.noise = memory_ * state_.noise + (1 - memory_) * noise;
  state_.signal = memory_ * state_.signal + (1 - memory_) * signal;
}

std::optional<double> NoiseScale::value() const {
  if (!(state_.signal > 0)) return std::nullopt;
  return state_.noise / state_.signal;
}

}  // namespace weft::optim
