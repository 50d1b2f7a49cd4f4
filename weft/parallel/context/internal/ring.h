// Ring attention: the blocks of attention.h in their order, and the messages between them.
#pragma once

#include <ATen/core/Tensor.h>

#include "weft/parallel/context/attention.h"

namespace weft::parallel::internal {

// As context_attention() with ContextMethod::kRing, on checked arguments. `cp` may have one rank,
// with a layout of one rank.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceLayout& layout, const ContextAttentionOptions& options,
                          const ContextParallel& cp);

}  // namespace weft::parallel::internal
