// Sums of squares in float64, for norms of gradients.
#pragma once

#include <ATen/ATen.h>

#include "weft/base/dtype.h"
#include "weft/kernels/reduce.h"

namespace weft::engine {

// Sum of squares of `count` float32 or float64 numbers.
inline double squares_of(const void* values, std::int64_t count, DType dtype) {
  if (dtype == DType::kF32)
    return kernels::sum_of_squares(static_cast<const float*>(values), count);
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i)
    squares += static_cast<const double*>(values)[i] * static_cast<const double*>(values)[i];
  return squares;
}

// Sum of squares of a flat tensor.
inline double squares_of(const at::Tensor& flat) {
  if (flat.scalar_type() == at::kFloat)
    return kernels::sum_of_squares(flat.const_data_ptr<float>(), flat.numel());
  return at::dot(flat, flat).item<double>();
}

}  // namespace weft::engine
