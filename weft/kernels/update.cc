#include "weft/kernels/update.h"

#include "weft/base/error.h"
#include "weft/kernels/internal/level.h"

namespace weft::kernels {

void sgd(float* weight, const float* gradient, float* momentum, std::int64_t count,
         std::int64_t step, const Sgd& options) {
  WEFT_REQUIRE(step >= 1, "sgd: steps count from 1");
  WEFT_REQUIRE(!options.nesterov || (options.momentum > 0.0 && options.dampening == 0.0),
               "sgd: nesterov needs a momentum and no dampening");
  internal::level().sgd(weight, gradient, momentum, count, step, options);
}

void rmsprop(float* weight, const float* gradient, float* square_average, float* momentum,
             float* gradient_average, std::int64_t count, const RmsProp& options) {
  internal::level().rmsprop(weight, gradient, {square_average, momentum, gradient_average}, count,
                            options);
}

void adagrad(float* weight, const float* gradient, float* sum, std::int64_t count,
             std::int64_t step, const Adagrad& options) {
  WEFT_REQUIRE(step >= 1, "adagrad: steps count from 1");
  internal::level().adagrad(weight, gradient, sum, count, step, options);
}

void adam(float* weight, const float* gradient, float* mean, float* variance, float* max_variance,
          std::int64_t count, std::int64_t step, const Adam& options) {
  WEFT_REQUIRE(step >= 1, "adam: steps count from 1");
  internal::level().adam(weight, gradient, {mean, variance, max_variance}, count, step, options);
}

void lion(float* weight, const float* gradient, float* mean, std::int64_t count,
          const Lion& options) {
  internal::level().lion(weight, gradient, mean, count, options);
}

}  // namespace weft::kernels
