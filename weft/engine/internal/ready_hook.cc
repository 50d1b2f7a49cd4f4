#include "weft/engine/internal/ready_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace weft::engine {
namespace {

class ReadyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  ReadyHook(std::function<void()> tell, std::unique_ptr<PostAccumulateGradHook> before)
      : tell_(std::move(tell)), before_(std::move(before)) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    tell_();
  }

 private:
  std::function<void()> tell_;
  std::unique_ptr<PostAccumulateGradHook> before_;  // the user's own hook
};

class BeforeHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeHook(std::function<void()> tell) : tell_(std::move(tell)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    tell_();
    return grads;
  }

 private:
  std::function<void()> tell_;
};

}  // namespace

void add_ready_hook(const at::Tensor& parameter, std::function<void()> tell) {
  auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter);
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter, std::make_unique<ReadyHook>(std::move(tell), std::move(slot)));
}

// Tensors refer weakly to the nodes that add to their gradients. set_(), and so torch::load(), lets
// them make new ones.
void ensure_before_hook(std::shared_ptr<void>& hooked, const at::Tensor& parameter,
                        const std::function<void()>& tell) {
  if (!parameter.requires_grad()) return;
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  using Node = decltype(node);
  if (hooked && *std::static_pointer_cast<Node>(hooked) == node) return;
  node->add_pre_hook(std::make_unique<BeforeHook>(tell));
  hooked = std::make_shared<Node>(std::move(node));
}

}  // namespace weft::engine
