// Memory that the other ranks of the host can read.
#pragma once

#include <ATen/ATen.h>

#include "weft/net/memory/host.h"

namespace weft::parallel::internal {

// The tensor itself, contiguous, where peers can read it, else a copy, which `host` outlives.
inline at::Tensor readable(net::Host& host, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  if (host.token(dense.data_ptr()) != net::Host::kNoToken) return dense;
  std::byte* const block = host.allocate(dense.nbytes());
  at::Tensor copy = at::from_blob(
      block, dense.sizes(), [&host, block](void*) { host.deallocate(block); }, dense.options());
  return copy.copy_(dense);
}

}  // namespace weft::parallel::internal
