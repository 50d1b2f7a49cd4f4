// Frees the memory of a result between forward and backward, for results that are large but cheap
// to compute.
//
//   const at::Tensor a = torch::gelu(up);
//   const at::Tensor y = down_proj->forward(a);                    // a product, which keeps a for
//                                                                  // its weight's gradient
//   discard(a, [up] { return torch::gelu(up); }, y);                // a's memory is free until y's
//                                                                  // gradient arrives
//
// recompute() runs the whole wrapped part again, including all uses of its results. discard() runs
// only the cheap function again, before backward reaches the user of its result, so no matrix
// product is computed twice (output-discarding recomputation in Megatron-LM). Gradients have the
// same bits as without it, since the graph is the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace weft::parallel {

// Frees the memory of `result`. Before the first gradient of `user` is propagated, `again`() fills
// the memory. Does nothing if no gradient is recorded, or if one of the two needs none.
//
// The caller must ensure: `again` returns the same values with the same strides; after this call,
// only the backward of the users of `result` reads it; every gradient reaches them through `user`;
// no other tensor shares the memory. `again` may hold tensors that the graph also holds, but not
// `result`; it is released after it has run. Throws Error(kInvalidArgument) if `result` is a part
// of another tensor's memory; in backward, if `again` returns another shape or other strides.
void discard(const at::Tensor& result, std::function<at::Tensor()> again, const at::Tensor& user);

}  // namespace weft::parallel
