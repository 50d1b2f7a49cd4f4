#include "weft/comm/internal/staging.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::comm::internal {

at::Tensor to_host(const at::Tensor& tensor) {
  // Operations run on weft's own threads, which do not have the caller's current stream. So wait
  // for all streams of the device.
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.synchronizeDevice(tensor.device().index());
  const at::Tensor staged =
      at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
  return staged.copy_(tensor);
}

}  // namespace weft::comm::internal
