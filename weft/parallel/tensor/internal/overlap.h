// The collective of a row's product while the product is computed, in pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include "weft/parallel/tensor/collectives.h"

namespace weft::parallel::internal {

struct Overlap {
  Sequence sequence = Sequence::kWhole;
  int chunks = 1;
};

// leave_split(x W^T): of x [..., sequence, in] and W [out, in], in `chunks` pieces of the sequence:
// each piece is all-reduced (reduce-scattered) while the next one is multiplied, and, backward with
// the sequence split, gathered while the one before is. The same bytes in `chunks` times the calls.
// No gradients of gradients: throws Error(kInvalidArgument).
at::Tensor multiply_and_leave(const at::Tensor& x, const at::Tensor& weight, const Overlap& how,
                              const TensorParallel& tp);

}  // namespace weft::parallel::internal
