// Dynamic loss scaling for float16 (Micikevicius and others: Mixed precision training, 2018), by
// the rule and defaults of torch.amp.GradScaler.
//
// Gradients that are not finite skip the step and halve the scale. `interval` good steps in a row
// double it. The result depends only on the steps, so ranks that agree on which steps were finite
// have the same scale without communication.
#pragma once

#include <cstdint>

namespace weft::parallel {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t interval = 2000;  // Good steps in a row before the scale grows.
};

class LossScale {
 public:
  // Throws Error(kInvalidArgument) unless initial > 0, growth > 1, 0 < backoff < 1 and interval >=
  // 1.
  explicit LossScale(const LossScaleOptions& options = {});

  double scale() const { return scale_; }
  std::int64_t good_steps() const { return good_steps_; }
  // Records whether the gradients of a step were finite. Call it after each step. A growth beyond
  // float32's range is left out, as in torch.
  void update(bool finite);
  // Restores the state from a checkpoint.
  void set(double scale, std::int64_t good_steps);

 private:
  LossScaleOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;
};

}  // namespace weft::parallel
