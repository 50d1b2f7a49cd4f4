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
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace weft::engine {

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

// Checks the buffers of a module before it trains on several ranks. Expanded ones get memory of
// their own, since values from other ranks are written to them. Throws Error(kInvalidArgument),
// with the name after `prefix`, for a buffer that is not dense, is quantized, or whose elements
// share memory in another way.
void prepare_buffers(torch::nn::Module& module, const std::string& prefix);

// For libtorch's error that a batch norm has one value per channel: the cause, and what to do.
// Empty for other errors. `remedy`: how to synchronize the batch norms.
std::string cause_in_batch_norm(const std::string& error, const std::string& remedy);

namespace internal {

// The tensor, or an undefined one for a value of another type.
template <class T>
at::Tensor tensor_of(const T& value) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) return value;
  return {};
}

// Tensors, and those in lists, tuples and optionals.
struct Outputs {
  template <class T>
  explicit Outputs(const T& value) {
    add(value);
  }

  std::vector<at::Tensor> tensors;
  bool known = true;  // False: there are values of other types, which may hold tensors.

 private:
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
      tensors.push_back(value);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      std::apply([&](const auto&... each) { (add(each), ...); }, value);
    } else if constexpr (requires { value.has_value() ? &*value : nullptr; }) {
      if (value) add(*value);
    } else if constexpr (requires { value.begin() == value.end(); }) {
      for (const auto& each : value) add(each);
    } else {
      known = known && std::is_arithmetic_v<T>;
    }
  }
};

}  // namespace internal

// Parameters of one or no dimension, mostly biases and norms: for OptimizerSpec::no_decay.
std::function<bool(const std::string&)> vectors_of(const std::vector<Block>& blocks);
std::function<bool(const std::string&)> vectors_of(const torch::nn::Module& module);

}  // namespace weft::engine
