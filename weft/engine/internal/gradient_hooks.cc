#include "weft/engine/internal/gradient_hooks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "weft/engine/internal/index.h"
#include "weft/engine/internal/ready_hook.h"

namespace weft::engine::internal {

void GradientHooks::install(std::function<void()> before,
                            const std::function<void(int param)>& ready) {
  before_ = std::move(before);
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    add_ready_hook(params_[i].tensor, [ready, param = static_cast<int>(i)] { ready(param); });
  }
  commit();
}

void GradientHooks::commit() {
  for (std::size_t i = 0; i < params_.trained(); ++i)
    ensure_before_hook(hooked_[i], params_[i].tensor, before_);
}

void GradientHooks::note(int param) {
  at_grad_.clear();
  const at::Tensor& gradient = params_[index(param)].tensor.grad();
  if (gradient.defined()) versions_[index(param)] = gradient._version();
}

void GradientHooks::note_grad() {
  if (!at_grad_.empty()) return;
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return;  // backward()
  const auto is_taken = [&](const Param& param) {
    const auto node = torch::autograd::impl::try_get_grad_accumulator(param.tensor);
    const auto found = nodes->find(node.get());
    return node && found != nodes->end() && found->second.captures_;
  };
  const auto& params = params_.all();
  const auto trained = params.begin() + static_cast<std::ptrdiff_t>(params_.trained());
  // While gradients of a backward() are there, the program steps by these, and looks at others.
  if (std::none_of(params.begin(), trained, is_taken) || !are_dropped()) return;
  for (auto param = params.begin(); param != trained; ++param)
    at_grad_.push_back(sample_lines(param->tensor, 0));
}

const Param* GradientHooks::changed_since_grad() const {
  for (std::size_t i = 0; i < at_grad_.size(); ++i) {
    if (sample_lines(params_[i].tensor, 0) != at_grad_[i]) return &params_[i];
  }
  return nullptr;
}

// zero_grad() resets them, or fills them with zeros.
bool GradientHooks::are_dropped() const {
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    const at::Tensor& gradient = params_[i].tensor.grad();
    if (!gradient.defined()) continue;
    // An equal version means that nothing has written to it since backward(). Only others are read.
    if (gradient._version() == versions_[i] || !is_zeros(gradient)) return false;
  }
  return true;
}

}  // namespace weft::engine::internal
