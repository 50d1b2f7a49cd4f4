#include "weft/models/vision/parts.h"

namespace weft::models {

std::shared_ptr<torch::nn::Module> holder(const Children& children) {
  auto parent = std::make_shared<torch::nn::Module>("Holder");
  for (const auto& [name, child] : children) parent->register_module(name, child);
  return parent;
}

parallel::Block block(const Part& part) {
  const auto forward = [part](parallel::Tensors x) {
    x[0] = part.forward(x[0]);
    return x;
  };
  return {.module = part.module, .forward = forward};
}

}  // namespace weft::models
