// Copies tensors of an accelerator to host memory and back, since the weft backend moves host
// memory only.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::comm::internal {

// A contiguous, pinned copy of `tensor` in host memory, made after all pending work of its device
// has finished.
at::Tensor to_host(const at::Tensor& tensor);

}  // namespace weft::comm::internal
