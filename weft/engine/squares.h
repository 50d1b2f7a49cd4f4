// What norms of gradients are made of.
#pragma once

#include <ATen/ATen.h>

#include "weft/kernels/reduce.h"

namespace weft::parallel::internal {

// The sum of squares of a flat tensor, in float64.
inline double squares_of(const at::Tensor& flat) {
  if (flat.scalar_type() == at::kFloat) return kernels::sum_of_squares(flat.const_data_ptr<float>(), flat.numel());
  return at::dot(flat, flat).item<double>();
}

}  // namespace weft::parallel::internal
