// Block: a part of a model that is not divided further.
//
// ZeRO-3 (Sharded), Pipeline and parallelize() take lists of blocks, since libtorch's C++ modules
// have no forward hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace weft::parallel {

using Tensors = std::vector<at::Tensor>;

struct Block {
  // Name, distinct in a list. Parameters are called "<name>.<parameter>".
  std::string name = {};
  // Module with all parameters and buffers that `forward` uses.
  std::shared_ptr<torch::nn::Module> module = nullptr;
  // Function from all tensors that the previous block returns to all tensors that the next block
  // takes.
  std::function<Tensors(const Tensors&)> forward = nullptr;
  // Parameters that other blocks have too, by a shared name: the parameter's name in the first of
  // these blocks, in the whole model.
  std::map<std::string, at::Tensor> tied = {};
  // Prefix of the parameters' names in the whole model and its checkpoints, if that is not `name`.
  // "": no prefix.
  std::optional<std::string> prefix = std::nullopt;
};

// Makes a block of a module whose forward takes one tensor and returns one. Further tensors pass
// through unchanged. Takes a module holder (TORCH_MODULE's Net) or a shared_ptr.
template <class ModuleT>
Block block(std::string name, std::shared_ptr<ModuleT> module) {
  const auto forward = [module](Tensors x) {
    x.at(0) = module->forward(x.at(0));
    return x;
  };
  return {.name = std::move(name), .module = module, .forward = forward};
}
template <class Holder>
auto block(std::string name, Holder holder) -> decltype(block(std::move(name), holder.ptr())) {
  return block(std::move(name), holder.ptr());
}
// As above, without a name: for lists that name their blocks (BlockModel) or need no names
// (Pipeline).
template <class Module>
Block block(Module module) {
  return block(std::string(), std::move(module));
}

// Parameters of one or no dimension, mostly biases and norms: for OptimizerSpec::no_decay.
std::function<bool(const std::string&)> vectors_of(const std::vector<Block>& blocks);
std::function<bool(const std::string&)> vectors_of(const torch::nn::Module& module);

}  // namespace weft::parallel
