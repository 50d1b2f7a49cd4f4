// Finds the slices of tensor and expert parallelism among a model's parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>

namespace weft::parallel::internal {

// Returns the slices of `root` and the modules below it, by their full names. own(module) returns
// the slices of a module's own parameters, by the parameter's name.
template <class Own>
auto slices_below(const torch::nn::Module& root, const Own& own) {
  decltype(own(root)) all;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& module) {
    for (const auto& [name, slice] : own(module)) all.emplace(prefix + name, slice);
  };
  add("", root);
  for (const auto& module : root.named_modules("", /*include_self=*/false))
    add(module.key() + ".", *module.value());
  return all;
}

}  // namespace weft::parallel::internal
