// Attention by heads: all-to-alls exchange some positions of all heads for all positions of some
// heads, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include "weft/parallel/context/attention.h"

namespace weft::parallel::internal {

// As context_attention() with ContextMethod::kHeads. The arguments are checked except for the
// numbers of heads.
at::Tensor heads_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SequenceLayout& layout, const ContextAttentionOptions& options,
                           const ContextParallel& cp);

}  // namespace weft::parallel::internal
