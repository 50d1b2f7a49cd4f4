#include "weft/comm/internal/vector_math.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace weft::comm::internal {

void settle_vector_math() {
  static const bool settled = [] {
    const at::NoGradGuard no_grad;
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({16}, 0.5, at::TensorOptions(at::kCPU).dtype(type));
      x.acos(), x.asin(), x.atan(), x.cos(), x.erf(), x.erfc(), x.erfinv(), x.exp();
      x.log(), x.log2(), x.log10(), x.sin(), x.sqrt(), x.tan(), x.tanh(), x.trunc();
      const at::Tensor m = at::full({16, 16}, 0.5, x.options()),
                       b = at::full({2, 16, 16}, 0.5, x.options());
      m.mm(m), m.mv(x), x.dot(x), b.bmm(b), at::addmm(x, m, m);
    }
    at::set_num_threads(threads);
    return true;
  }();
  (void)settled;
}

}  // namespace weft::comm::internal
