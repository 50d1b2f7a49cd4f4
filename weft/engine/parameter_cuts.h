// Models that are made shard by shard: the parameters of each block are cut as soon as the block is
// made, so that no rank ever holds more than one whole block.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "weft/comm/group.h"

namespace torch::nn {
class Module;
}

namespace weft::engine {

// Keeps 1/W of each cut parameter until Sharded takes it. All calls are collective over the group,
// in one order.
class ParameterCuts {
 public:
  explicit ParameterCuts(Group group);

  // Each rank gets its part of rank 0's values, and the memory of the parameters is freed. The
  // parameters keep their sizes and must not be read until Sharded has taken them. Skips parameters
  // that are cut already (tied ones) or for which `is_ignored` is true. Sends each parameter once.
  // Throws Error(kInvalidArgument) if two parameters of the module have memory in common.
  void cut(torch::nn::Module& module,
           const std::function<bool(const at::Tensor& parameter)>& is_ignored = nullptr);

  bool has(const at::Tensor& parameter) const;
  // Gathers a cut parameter into `into` [numel], and drops its part.
  void take(const at::Tensor& parameter, at::Tensor into);

 private:
  Group group_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> parts_;
};

// A tensor of the same sizes that takes no memory. Use of its values throws
// Error(kInvalidArgument) with the text `why`.
at::Tensor refusing(const at::Tensor& like, const std::string& why);

// For a tensor whose memory comes and goes. While it is gone, use of the values throws such an
// error, also through data() and through views. A change of the memory, as by torch::load(), is
// allowed. Give the text once; admit() and refuse() then cost nanoseconds, and an operation on the
// tensor some microseconds.
void refuse(const at::Tensor& tensor, const std::string& why);
void refuse(const at::Tensor& tensor);
// It has memory for now.
void admit(const at::Tensor& tensor);
// It is an ordinary tensor again.
void accept(const at::Tensor& tensor);

}  // namespace weft::engine
