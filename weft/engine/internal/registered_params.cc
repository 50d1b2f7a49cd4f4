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

template <class Visit>
void each_buffer(const torch::nn::Module& module, const Visit& visit) {
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) visit(buffer);
  for (const auto& child : module.children()) each_buffer(*child, visit);
}

}  // namespace

std::string full_name(const std::string& block, const std::string& name) {
  return block + (block.empty() || name.empty() ? "" : ".") + name;
}

RegisteredParams::RegisteredParams(const std::vector<Block>& blocks,
                                   const std::vector<Param>& params, bool buffers)
    : params_(params), with_buffers_(buffers) {
  for (const Block& block : blocks) {
    modules_.emplace_back(block.name, block.module);
    each_parameter(*block.module, [&](const c10::TensorImpl* impl) { list_.push_back(impl); });
    if (!with_buffers_) continue;
    for (const auto& item : block.module->named_buffers())
      buffers_.push_back({full_name(block.name, item.key()), item.value()});
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
  if (same && place == list_.size()) return;
  const auto named = [](const torch::nn::Module& module) { return module.named_parameters(); };
  look_for(params_, named, "parameter", "its gradient is not combined over the ranks");
}

void RegisteredParams::check_buffers() const {
  if (!with_buffers_) return;
  std::size_t place = 0;
  bool same = true;
  for (const auto& [name, module] : modules_) {
    each_buffer(*module, [&](const at::Tensor& buffer) {
      same = same && place < buffers_.size() && buffers_[place].tensor.is_same(buffer);
      ++place;
    });
  }
  if (same && place == buffers_.size()) return;
  // The list of buffers that ranks send each other stays as it was.
  const auto named = [](const torch::nn::Module& module) { return module.named_buffers(); };
  look_for(buffers_, named, "buffer", "rank 0's values are not copied to all ranks");
}

// Throws for a tensor that came, which `named` finds and `before` lacks, or that went. Others may
// have changed their order.
template <class Before, class Named>
void RegisteredParams::look_for(const Before& before, const Named& named, const std::string& kind,
                                const std::string& consequence) const {
  std::set<const c10::TensorImpl*> known, found;
  for (const auto& one : before) known.insert(one.tensor.unsafeGetTensorImpl());
  for (const auto& [block, module] : modules_) {
    for (const auto& item : named(*module)) {
      found.insert(item.value().unsafeGetTensorImpl());
      if (!known.contains(item.value().unsafeGetTensorImpl()))
        throw Error(Errc::kInvalidArgument,
                    "'" + full_name(block, item.key()) + "' became a " + kind +
                        " of the module after the module was made parallel, so " + consequence +
                        "; " + kMakeAgain);
    }
  }
  for (const auto& one : before) {
    if (!found.contains(one.tensor.unsafeGetTensorImpl()))
      throw Error(Errc::kInvalidArgument,
                  "'" + one.name + "' is no longer a " + kind + " of the module; " + kMakeAgain);
  }
}

}  // namespace weft::engine::internal
