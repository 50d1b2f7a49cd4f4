#include "weft/parallel/compose/internal/made_up.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::parallel::internal {
namespace {

namespace autograd = torch::autograd;

struct Zeros final : autograd::FunctionPreHook {
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    autograd::variable_list zeros;
    for (const at::Tensor& gradient : gradients)
      zeros.push_back(gradient.defined() ? at::zeros_like(gradient) : gradient);
    return zeros;
  }
};

EvaluationMode::Modules with_statistics(const std::vector<engine::Block>& blocks) {
  EvaluationMode::Modules modules;
  for (const engine::Block& block : blocks) {
    if (!block.module->buffers().empty()) modules.push_back(block.module);
  }
  return modules;
}

}  // namespace

MadeUp::MadeUp(const std::vector<engine::Block>& blocks, bool forward)
    : mode_(forward ? with_statistics(blocks) : EvaluationMode::Modules{}) {
  for (const engine::Block& block : blocks) {
    for (const at::Tensor& parameter : block.module->parameters()) {
      if (!parameter.requires_grad()) continue;
      autograd::impl::hooks(parameter).push_back(std::make_unique<Zeros>());
      parameters_.push_back(parameter);
    }
  }
}

MadeUp::~MadeUp() {
  for (const at::Tensor& parameter : parameters_) {
    std::erase_if(autograd::impl::hooks(parameter), [](const auto& hook) {
      return dynamic_cast<const Zeros*>(hook.get()) != nullptr;
    });
  }
}

}  // namespace weft::parallel::internal
