// Initial values as libtorch's layers draw them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weft/parallel/tensor/context.h"

namespace weft::parallel::internal {

// A linear or convolution layer's weight, whole: kaiming_uniform_(a = sqrt 5); or N(0, normal²)
// where that is above 0.
at::Tensor draw_weight(at::IntArrayRef sizes, double normal, const TensorParallel& tp);
// Its bias: uniform in ±1/sqrt(fan_in); or zeros.
at::Tensor draw_bias(std::int64_t size, std::int64_t fan_in, double normal,
                     const TensorParallel& tp);

}  // namespace weft::parallel::internal
