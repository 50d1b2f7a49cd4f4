// How tensor and expert parallelism find the slices among a model's parameters.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>

#include "weft/parallel/tensor/context.h"

namespace weft::parallel::internal {

// The slices below `root`, itself included, by their full names. own(module) gives those of a module's own parameters, by the parameter's
// name.
template <class Own>
std::map<std::string, Slice> slices_below(const torch::nn::Module& root, const Own& own) {
  std::map<std::string, Slice> all;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& module) {
    for (const auto& [name, slice] : own(module)) all.emplace(prefix + name, slice);
  };
  add("", root);
  for (const auto& module : root.named_modules("", /*include_self=*/false)) add(module.key() + ".", *module.value());
  return all;
}

}  // namespace weft::parallel::internal
