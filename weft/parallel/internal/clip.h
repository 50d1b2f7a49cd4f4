// The last part of clip_grad_norm(), shared by all forms of parallelism.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace weft::parallel::internal {

// Scales the gradients of `parameters`, whose joint norm over all ranks is `norm`, down to
// `max_norm` if it is less. Returns `norm`.
inline double clip_to_norm(const std::vector<at::Tensor>& parameters, double norm,
                           double max_norm) {
  const double scale = max_norm / (norm + 1e-6);  // as torch: avoids a division by zero
  if (scale >= 1) return norm;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) parameter.grad().mul_(scale);
  }
  return norm;
}

}  // namespace weft::parallel::internal
