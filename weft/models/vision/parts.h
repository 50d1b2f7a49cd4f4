// Nets as lists of parts in order, each a module from tensor to tensor, for what takes nets apart: pipelines, sharding, recomputation.
//
//   const Parts parts = mixer_parts(options);
//   Pipeline model(mesh["pp"], parts.count, [&](int i) { torch::manual_seed(i); return block(parts.make(i)); }, …);
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/pipeline/pipeline.h"

namespace weft::models {

struct Part {
  std::string prefix;  // with the module's own names behind it: the names in the whole net ("layer1.0." + "conv1.weight")
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;  // keeps the module alive
};

// A net that does not exist yet: `make` gives part i of `count`, with initial values drawn as it is made. All parts together have the
// parameters of the whole net; what part i computes goes into part i + 1.
struct Parts {
  int count = 0;
  std::function<Part(int)> make;  // throws Error(kInvalidArgument) for a number that is none
};

template <class ModuleT>
Part part_of(std::string prefix, std::shared_ptr<ModuleT> module) {
  return {std::move(prefix), module, [module](const at::Tensor& x) { return module->forward(x); }};
}

// Modules as the children of one, which has nothing else (and cannot be cloned).
using Children = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
std::shared_ptr<torch::nn::Module> holder(const Children& children);

parallel::Block block(const Part& part);

}  // namespace weft::models
