// Overlaps the product of a row-split layer with its collective, in pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include "weft/parallel/tensor/collectives.h"

namespace weft::parallel::internal {

struct Overlap {
  Sequence sequence = Sequence::kWhole;
  int chunks = 1;
};

// Computes leave_split(x W^T) for x [..., sequence, in] and W [out, in], in `chunks` pieces of the
// sequence. Each piece is all-reduced (or reduce-scattered) while the next one is multiplied. In
// backward with a split sequence, each piece is gathered while the previous one is multiplied. The
// bytes are the same, in `chunks` times the calls. Gradients of gradients throw
// Error(kInvalidArgument).
at::Tensor multiply_and_leave(const at::Tensor& x, const at::Tensor& weight, const Overlap& how,
                              const TensorParallel& tp);

}  // namespace weft::parallel::internal
