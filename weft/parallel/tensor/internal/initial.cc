#include "weft/parallel/tensor/internal/initial.h"

#include <torch/types.h>

#include <cmath>

namespace weft::parallel::internal {

at::Tensor draw_weight(at::IntArrayRef sizes, double normal, const TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = torch::empty(sizes);
  if (normal > 0) return weight.normal_(0, normal, tp.generator());
  const double fan_in = static_cast<double>(weight[0].numel());
  // torch::nn::init::calculate_gain of a leaky ReLU, in the order of its own operations.
  const double gain = std::sqrt(2.0 / (1 + std::pow(std::sqrt(5.0), 2)));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(fan_in));
  return weight.uniform_(-bound, bound, tp.generator());
}

at::Tensor draw_bias(std::int64_t size, std::int64_t fan_in, double normal,
                     const TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  if (normal > 0) return torch::zeros({size});
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return torch::empty({size}).uniform_(-bound, bound, tp.generator());
}

}  // namespace weft::parallel::internal
