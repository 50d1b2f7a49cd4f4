// LearningRate: the learning rate as a pure function of time. A resumed run has no scheduler state
// to restore.
#pragma once

#include <cstdint>

namespace weft::optim {

struct LearningRate {
  enum class Shape : std::uint8_t { kConstant, kStep, kCosine };

  double base = 0.1;
  Shape shape = Shape::kConstant;
  // Length of the schedule, in the unit of the time given. kStep: the rate is multiplied by gamma
  // after each period. kCosine: half a cosine from base to minimum over one period, then minimum
  // (Loshchilov and Hutter 2017, eq. 5, without restarts).
  double period = 1.0;
  double gamma = 0.1;
  double minimum = 0.0;
  // Linear warm-up of any shape: a factor that grows from warmup_factor at time 0 to 1 at time
  // `warmup` (Goyal et al. 2017, 2.2). The shape's own time also starts at 0.
  double warmup = 0.0;
  double warmup_factor = 0.0;

  // Returns the rate at a time >= 0: a step's index, or epochs with their fraction. All lengths
  // above are in the same unit. Equals PyTorch's StepLR, CosineAnnealingLR and LinearLR, chained.
  // Throws Error(kInvalidArgument) for a time < 0, and for a period <= 0 of kStep or kCosine.
  double at(double time) const;
};

// The same rate of two ranks. Its last bits may depend on the processor.
bool are_equal_rates(double a, double b);

// Scales `base`, the rate for `reference_batch`, to a global batch of world * batch samples (Goyal
// et al. 2017, 2.1).
double linear_scaling(double base, int world, std::int64_t batch, std::int64_t reference_batch);

}  // namespace weft::optim
