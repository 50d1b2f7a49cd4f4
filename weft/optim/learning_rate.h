// The learning rate as a pure function of time, so that a resumed run has no scheduler state to restore.
#pragma once

#include <cstdint>

namespace weft::optim {

struct LearningRate {
  enum class Shape : std::uint8_t { kConstant, kStep, kCosine };

  double base = 0.1;
  Shape shape = Shape::kConstant;
  // kStep: the rate is multiplied by gamma after each period. kCosine: half a cosine from base to minimum over one period, then minimum
  // (Loshchilov and Hutter 2017, eq. 5, without restarts). Same unit as the time given.
  double period = 1.0;
  double gamma = 0.1;
  double minimum = 0.0;
  // Multiplies any shape by a factor that grows linearly from warmup_factor at time 0 to 1 at time `warmup` (Goyal et al. 2017, 2.2).
  // The shape's own time starts at 0 all the same.
  double warmup = 0.0;
  double warmup_factor = 0.0;

  // The rate at a time >= 0: a step's index, or epochs with their fraction; all lengths above are in the same unit.
  // Equals PyTorch's StepLR, CosineAnnealingLR and LinearLR, chained. Throws Error(kInvalidArgument) for a period <= 0 or time < 0.
  double at(double time) const;
};

// The rate for a global batch of world * batch samples, where `base` is meant for `reference_batch` (Goyal et al. 2017, 2.1).
double linear_scaling(double base, int world, std::int64_t batch, std::int64_t reference_batch);

}  // namespace weft::optim
