// Test helper: a model whose gradients a test changes on one rank, before they leave it.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "weft/parallel/compose/model.h"

namespace weft::parallel::internal {

// A rank's own. `change` is applied to the gradient of `parameter` ("body.0.norm.weight") while
// set.
struct Tampering {
  std::string parameter;
  std::function<void(at::Tensor&)> change;
};

inline BlockModel tampered(BlockModel model, const std::shared_ptr<Tampering>& how) {
  for (BlockSpec& spec : model.blocks) {
    spec.make = [make = spec.make, name = spec.name, how](const Contexts& with) {
      Block block = make(with);
      for (auto& item : block.module->named_parameters()) {
        if (name + "." + item.key() != how->parameter) continue;
        item.value().register_hook([how](const at::Tensor& gradient) {
          at::Tensor changed = gradient.clone();
          if (how->change) how->change(changed);
          return changed;
        });
      }
      return block;
    };
  }
  return model;
}

}  // namespace weft::parallel::internal
