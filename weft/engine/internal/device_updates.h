// Optimizer steps of whole tensors on an accelerator.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "weft/optim/update_rule.h"

namespace weft::engine::internal {

// Tensors of one device with a common rule and step. By tensor; state[array] is empty or has as
// many tensors as `weights`, in the order of state_names().
struct DeviceTensors {
  std::vector<at::Tensor> weights, gradients;
  std::array<std::vector<at::Tensor>, 3> state;
};

// Does step number `step`, from 1, in the device's current stream; does not wait for it. SGD, Adam
// and AdamW take libtorch's fused kernels, the others its plain operations. The equations are those
// of update_flat(). Gradients do not change. Throws Error(kInvalidArgument) for a rule that
// needs_whole_tensors().
void update_on_device(const optim::UpdateRule& rule, std::int64_t step,
                      const DeviceTensors& tensors);

}  // namespace weft::engine::internal
