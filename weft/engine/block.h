// A block: the part of a model that nobody divides further. Lists of blocks are what ZeRO-3 (Sharded), Pipeline and parallelize() take,
// since libtorch's C++ modules have no forward hooks.
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
  std::string name = {};                                // distinct in a list; its parameters are "<name>.<parameter>"
  std::shared_ptr<torch::nn::Module> module = nullptr;  // all parameters and buffers that forward uses
  // From all tensors that the block before gives to all tensors that the next one takes.
  std::function<Tensors(const Tensors&)> forward = nullptr;
  // Parameters that other blocks have too, by a name that they share: the one that the first of them has in the whole model.
  std::map<std::string, at::Tensor> tied = {};
  // Prefix of the parameters' names in the whole model and its checkpoints, where that is not `name`; "": no prefix.
  std::optional<std::string> prefix = std::nullopt;
};

// A block of a module whose forward takes one tensor and gives one: further tensors pass by. Takes a module holder (TORCH_MODULE's Net) or
// a shared_ptr.
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
// Without a name, for lists that give it one (BlockModel) or need none (Pipeline).
template <class Module>
Block block(Module module) {
  return block(std::string(), std::move(module));
}

}  // namespace weft::parallel
