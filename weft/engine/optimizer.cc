#include "weft/engine/optimizer.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "weft/engine/internal/binding.h"

namespace weft::engine {
namespace {

kernels::Regularizer regularizer(double weight_decay, const OptimizerExtras& extras) {
  return {.l1 = extras.l1, .l2 = weight_decay};
}

OptimizerSpec spec_of(UpdateRule rule, const OptimizerExtras& extras) {
  optim::check_rule(rule);
  OptimizerSpec spec;
  spec.rule = std::move(rule);
  spec.max_grad_norm = extras.max_grad_norm;
  return spec;
}

}  // namespace

OptimizerSpec optimizer_spec(const torch::optim::SGDOptions& o, const OptimizerExtras& extras) {
  return spec_of(kernels::Sgd{.lr = o.lr(),
                              .momentum = o.momentum(),
                              .dampening = o.dampening(),
                              .nesterov = o.nesterov(),
                              .regularizer = regularizer(o.weight_decay(), extras)},
                 extras);
}

OptimizerSpec optimizer_spec(const torch::optim::RMSpropOptions& o, const OptimizerExtras& extras) {
  return spec_of(kernels::RmsProp{.lr = o.lr(),
                                  .alpha = o.alpha(),
                                  .eps = o.eps(),
                                  .momentum = o.momentum(),
                                  .centered = o.centered(),
                                  .regularizer = regularizer(o.weight_decay(), extras)},
                 extras);
}

OptimizerSpec optimizer_spec(const torch::optim::AdagradOptions& o, const OptimizerExtras& extras) {
  OptimizerSpec spec =
      spec_of(kernels::Adagrad{.lr = o.lr(),
                               .lr_decay = o.lr_decay(),
                               .eps = o.eps(),
                               .regularizer = regularizer(o.weight_decay(), extras)},
              extras);
  WEFT_REQUIRE(o.initial_accumulator_value() >= 0,
               "optimizer: adagrad needs an initial_accumulator_value of at least 0");
  spec.initial_accumulator = o.initial_accumulator_value();
  return spec;
}

OptimizerSpec optimizer_spec(const torch::optim::AdamOptions& o, const OptimizerExtras& extras) {
  const auto [beta1, beta2] = o.betas();
  return spec_of(kernels::Adam{.lr = o.lr(),
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .eps = o.eps(),
                               .amsgrad = o.amsgrad(),
                               .regularizer = regularizer(o.weight_decay(), extras)},
                 extras);
}

OptimizerSpec optimizer_spec(const torch::optim::AdamWOptions& o, const OptimizerExtras& extras) {
  const auto [beta1, beta2] = o.betas();
  return spec_of(kernels::Adam{.lr = o.lr(),
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .eps = o.eps(),
                               .decoupled_decay = o.weight_decay(),
                               .amsgrad = o.amsgrad(),
                               .regularizer = regularizer(0, extras)},
                 extras);
}

OptimizerSpec optimizer_spec(UpdateRule rule, const OptimizerExtras& extras) {
  WEFT_REQUIRE(extras.l1 == 0 || !optim::needs_whole_tensors(rule),
               "optimizer: " + optim::name_of(rule) + " has no L1 penalty; set l1 = 0");
  std::visit(
      [&](auto& own) {
        if constexpr (requires { own.regularizer; }) own.regularizer.l1 += extras.l1;
      },
      rule);
  return spec_of(std::move(rule), extras);
}

Optimizer::Optimizer(std::shared_ptr<Binding> binding) : binding_(std::move(binding)) {}
void Optimizer::step() { binding_->replica()->step(1); }
void Optimizer::zero_grad() { binding_->replica()->drop_own_gradients(); }
double Optimizer::lr() const { return binding_->lr(); }
void Optimizer::set_lr(double lr) { binding_->set_lr(lr); }
std::int64_t Optimizer::steps() const { return binding_->replica()->steps(); }
double Optimizer::grad_norm() const { return binding_->replica()->norm(); }
std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  return binding_->replica()->optimizer_state();
}
void Optimizer::load_state(const std::vector<std::pair<std::string, at::Tensor>>& state) {
  binding_->replica()->load_optimizer_state(state);
}

}  // namespace weft::engine
