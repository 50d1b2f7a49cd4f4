// Initial values, drawn for the whole tensor from the random state that all ranks share
// (parallel/tensor/context.h).
#pragma once

#include <torch/types.h>

#include <cmath>

#include "weft/parallel/tensor/context.h"

namespace weft::parallel::internal {

// N(0, normal²), or as torch::nn::Linear's weight [out, in]: uniform in ±1/sqrt(in).
inline at::Tensor draw(at::IntArrayRef sizes, double normal, const TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = torch::empty(sizes);
  if (normal > 0) return weight.normal_(0, normal, tp.generator());
  const double bound = 1 / std::sqrt(static_cast<double>(sizes.back()));
  return weight.uniform_(-bound, bound, tp.generator());
}

}  // namespace weft::parallel::internal
