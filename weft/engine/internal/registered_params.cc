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
    each_buffer(*block.module, [&](const at::Tensor& buffer) { buffers_.push_back(buffer); });
    for (const auto& item : block.module->named_buffers())
      buffer_names_.push_back(full_name(block.name, item.key()));
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
  if (!same || place != list_.size()) look_for_params();
}

void RegisteredParams::check_buffers() const {
  if (!with_buffers_) return;
  std::size_t place = 0;
  bool same = true;
  for (const auto& [name, module] : modules_) {
    each_buffer(*module, [&](const at::Tensor& buffer) {
      same = same && place < buffers_.size() && buffers_[place].is_same(buffer);
      ++place;
    });
  }
  if (!same || place != buffers_.size()) look_for_buffers();
}

// Names a parameter that came or went. Others may have changed their order.
void RegisteredParams::look_for_params() const {
  std::set<const c10::TensorImpl*> known, found;
  for (const Param& param : params_) known.insert(param.tensor.unsafeGetTensorImpl());
  for (const auto& [block, module] : modules_) {
    for (const auto& item : module->named_parameters()) {
      found.insert(item.value().unsafeGetTensorImpl());
      if (!known.contains(item.value().unsafeGetTensorImpl()))
        throw Error(Errc::kInvalidArgument,
                    "'" + full_name(block, item.key()) +
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

// The list of buffers that ranks send each other stays as it was.
void RegisteredParams::look_for_buffers() const {
  std::set<const c10::TensorImpl*> known, found;
  for (const at::Tensor& buffer : buffers_) known.insert(buffer.unsafeGetTensorImpl());
  for (const auto& [block, module] : modules_) {
    for (const auto& item : module->named_buffers()) {
      found.insert(item.value().unsafeGetTensorImpl());
      if (!known.contains(item.value().unsafeGetTensorImpl()))
        throw Error(Errc::kInvalidArgument,
                    "'" + full_name(block, item.key()) +
                        "' became a buffer of the module after the module was made parallel, so "
                        "rank 0's values are not copied to all ranks; " +
                        kMakeAgain);
    }
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (!found.contains(buffers_[i].unsafeGetTensorImpl()))
      throw Error(Errc::kInvalidArgument,
                  "'" + buffer_names_[i] + "' is no longer a buffer of the module; " + kMakeAgain);
  }
}

}  // namespace weft::engine::internal
