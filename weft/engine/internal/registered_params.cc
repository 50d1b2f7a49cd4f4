#include "weft/engine/internal/registered_params.h"

#include <torch/nn/module.h>

#include <set>

#include "weft/base/error.h"

namespace weft::engine::internal {
namespace {

// The list itself: Module::parameters() would copy it, and each name in it.
struct Parameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&Parameters::parameters_);
  }
};

template <class Visit>
void each_parameter(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : Parameters::of(module)) visit(item.value().unsafeGetTensorImpl());
  for (const auto& child : module.children()) each_parameter(*child, visit);
}

}  // namespace

RegisteredParams::RegisteredParams(const std::vector<Block>& blocks,
                                   const std::vector<Param>& params)
    : params_(params) {
  for (const Block& block : blocks) {
    modules_.emplace_back(block.name, block.module);
    each_parameter(*block.module, [&](const c10::TensorImpl* impl) { list_.push_back(impl); });
  }
}

void RegisteredParams::check() const {
  std::size_t place = 0;
  bool same = true;
  for (const auto& [name, module] : modules_) {
    each_parameter(*module, [&](const c10::TensorImpl* impl) {
      same = same && place < list_.size() && list_[place] == impl;
      ++place;
    });
  }
  if (!same || place != list_.size()) look_for_names();
}

// Names a parameter that came or went. Others may have changed their order.
void RegisteredParams::look_for_names() const {
  std::set<const c10::TensorImpl*> known, found;
  for (const Param& param : params_) known.insert(param.tensor.unsafeGetTensorImpl());
  for (const auto& [block, module] : modules_) {
    for (const auto& item : module->named_parameters()) {
      const std::string name = (block.empty() ? "" : block + ".") + item.key();
      found.insert(item.value().unsafeGetTensorImpl());
      if (!known.contains(item.value().unsafeGetTensorImpl()))
        throw Error(Errc::kInvalidArgument,
                    "'" + name +
                        "' became a parameter of the module after the module was made parallel, "
                        "so its gradient is not combined over the ranks; " +
                        kMakeAgain);
    }
  }
  for (const Param& param : params_) {
    if (!found.contains(param.tensor.unsafeGetTensorImpl()))
      throw Error(Errc::kInvalidArgument,
                  "'" + param.name + "' is no longer a parameter of the module; " + kMakeAgain);
  }
}

}  // namespace weft::engine::internal
