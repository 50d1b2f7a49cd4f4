// Models that are made shard by shard: the parameters of each block are cut as soon as the block is
// made, so that no rank ever holds more than one whole block.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <unordered_map>

#include "weft/comm/group.h"

namespace torch::nn {
class Module;
}

namespace weft::parallel {

// Keeps a part of 1/W of each parameter that was cut, until Sharded takes it. All calls are
// collective over the group, in one order.
class ParameterCuts {
 public:
  explicit ParameterCuts(Group group);

  // Everybody gets rank 0's values and keeps its part of them; the parameters' memory goes. They
  // keep their sizes, and must not be read until Sharded has them. Parameters that are cut already
  // (tied ones), and those of which `keep` is true, are passed over. Sends each parameter once.
  void cut(torch::nn::Module& module,
           const std::function<bool(const at::Tensor& parameter)>& keep = nullptr);

  bool has(const at::Tensor& parameter) const;
  // Gathers the whole of a parameter that was cut into `into` [numel], and forgets it.
  void take(const at::Tensor& parameter, at::Tensor into);

 private:
  Group group_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> parts_;
};

}  // namespace weft::parallel
