#include "weft/comm/internal/vector_math.h"

#include <ATen/ATen.h>

namespace weft::comm::internal {

void settle_vector_math() {
  static const bool settled = [] {
    const at::NoGradGuard no_grad;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({16}, 0.5, at::TensorOptions(at::kCPU).dtype(type));
      x.acos(), x.asin(), x.atan(), x.cos(), x.erf(), x.erfc(), x.erfinv(), x.exp();
      x.log(), x.log2(), x.log10(), x.sin(), x.sqrt(), x.tan(), x.tanh(), x.trunc();
    }
    return true;
  }();
  (void)settled;
}

}  // namespace weft::comm::internal
