// A result that forward has used and backward needs again, without its memory in between: what is
// cheap to compute and large to keep.
//
//   const at::Tensor a = torch::gelu(up);
//   const at::Tensor y = down_proj->forward(a);                    // a product, which keeps a for
//                                                                  // its weight's gradient
//   let_go(a, [up] { return torch::gelu(up); }, y);                // a's memory is free until y's
//                                                                  // gradient arrives
//
// recompute() runs again what it wraps, with all that uses its results inside; this runs the cheap
// function alone, before backward comes to what used its result: no product is computed twice (in
// Megatron-LM: output-discarding recomputation). Gradients are those without it, bit for bit: the
// graph is the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace weft::parallel {

// Frees the memory of `result`; before the first gradient of `user` goes on, `again`() is put
// there. Nothing happens where no gradient is recorded, or one of the two needs none.
//
// To be kept by the caller: `again` gives the same numbers, of the same strides; nobody reads
// `result` after this but the backward of what has used it, and every gradient gets there through
// `user`; nothing else shares the memory. `again` may hold tensors that the graph holds as well,
// not `result`; it is dropped once it has run. Throws Error(kInvalidArgument) for a result that is
// a part of another tensor's memory; in backward for another shape or other strides.
void let_go(const at::Tensor& result, std::function<at::Tensor()> again, const at::Tensor& user);

}  // namespace weft::parallel
