// Tensors of an accelerator as host memory: what the weft backend moves is in the host's memory, so
// theirs goes there and back.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::comm::internal {

// A contiguous, pinned copy of `tensor` in the host's memory, after all that its device has been
// given to do has been done.
at::Tensor to_host(const at::Tensor& tensor);

}  // namespace weft::comm::internal
