// Tensors and work on the device of a rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

namespace weft::parallel::internal {

// The tensors, moved to `device`.
inline std::vector<at::Tensor> on_device(std::vector<at::Tensor> tensors,
                                         const at::Device& device) {
  for (at::Tensor& tensor : tensors) tensor = tensor.to(device);
  return tensors;
}

// `device` with its number: of this thread's current device, if it has none.
inline at::Device with_index(const at::Device& device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

// Returns when the device has done all that was given to it.
inline void wait_for(const at::Device& device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace weft::parallel::internal
