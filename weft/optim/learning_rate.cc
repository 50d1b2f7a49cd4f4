#include "weft/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/base/error.h"

namespace weft::optim {

namespace {

double shape_at(const LearningRate& rate, double time) {
  switch (rate.shape) {
    case LearningRate::Shape::kConstant: return rate.base;
    case LearningRate::Shape::kStep:
      // 0.3 / 0.1 is a little below 3.
      return rate.base * std::pow(rate.gamma, std::floor(time / rate.period * (1 + 1e-12)));
    case LearningRate::Shape::kCosine: {
      const double progress = std::min(time / rate.period, 1.0);
      return rate.minimum +
             (rate.base - rate.minimum) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    }
  }
  return rate.base;
}

}  // namespace

double LearningRate::at(double time) const {
  WEFT_REQUIRE(time >= 0.0,
               "learning rate: time is negative; give steps or epochs since the start");
  WEFT_REQUIRE(shape == Shape::kConstant || period > 0.0,
               "learning rate: the period of a step or cosine schedule must be positive");
  const double value = shape_at(*this, time);
  return time < warmup ? value * (warmup_factor + (1.0 - warmup_factor) * time / warmup) : value;
}

bool are_equal_rates(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

double linear_scaling(double base, int world, std::int64_t batch, std::int64_t reference_batch) {
  WEFT_REQUIRE(world >= 1 && batch >= 1 && reference_batch >= 1,
               "linear scaling: world and batches must be positive");
  return base * static_cast<double>(world) * static_cast<double>(batch) /
         static_cast<double>(reference_batch);
}

}  // namespace weft::optim
