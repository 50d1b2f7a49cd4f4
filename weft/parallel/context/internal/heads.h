// Attention by heads: positions of some heads become some positions of all heads and back, by
// all-to-alls.
#pragma once

#include <ATen/core/Tensor.h>

#include "weft/parallel/context/attention.h"

namespace weft::parallel::internal {

// As context_attention() by ContextMethod::kHeads, on arguments that fit but for the numbers of
// heads.
at::Tensor heads_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SequenceLayout& layout, const ContextAttentionOptions& options,
                           const ContextParallel& cp);

}  // namespace weft::parallel::internal
