#include "weft/models/vision/internal/holder.h"

#include <torch/nn/module.h>

namespace weft::models::internal {

engine::Block block_of(std::string name, const Children& children,
                       std::function<at::Tensor(const at::Tensor&)> forward) {
  auto parent = std::make_shared<torch::nn::Module>("Holder");
  for (const auto& [child, module] : children) parent->register_module(child, module);
  const auto of_all = [forward = std::move(forward)](engine::Tensors x) {
    x.at(0) = forward(x.at(0));
    return x;
  };
  return {.name = std::move(name), .module = parent, .forward = of_all, .prefix = ""};
}

}  // namespace weft::models::internal
