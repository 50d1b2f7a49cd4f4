// Dynamic loss scaling for float16 (Micikevicius and others: Mixed precision training, 2018), by the rule and defaults of
// torch.amp.GradScaler: gradients that are not finite skip the step and halve the scale; so many good steps on end double it. Pure: whoever
// shows it the same steps gets the same scales, so ranks that agree on what was finite need no more.
#pragma once

#include <cstdint>

namespace weft::parallel {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t interval = 2000;  // good steps before it grows
};

class LossScale {
 public:
  // Throws Error(kInvalidArgument) for an initial scale that is not positive, a growth of at most 1, a backoff outside (0, 1), no interval.
  explicit LossScale(const LossScaleOptions& options = {});

  double scale() const { return scale_; }
  std::int64_t good_steps() const { return good_steps_; }
  // After each step: whether its gradients were finite. A growth that would leave float32's range is left out, as in torch.
  void update(bool finite);
  // From a checkpoint.
  void set(double scale, std::int64_t good_steps);

 private:
  LossScaleOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;
};

}  // namespace weft::parallel
