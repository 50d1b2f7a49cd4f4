#include "weft/engine/optimizer.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <map>

#include "weft/engine/internal/replica.h"
#include "weft/engine/update_rule.h"

namespace weft::parallel {
namespace {

kernels::Regulariser regulariser(double weight_decay, const OptimizerExtras& extras) { return {.l1 = extras.l1, .l2 = weight_decay}; }

OptimizerSpec spec_of(UpdateRule rule, const OptimizerExtras& extras) {
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
                              .regulariser = regulariser(o.weight_decay(), extras)},
                 extras);
}

OptimizerSpec optimizer_spec(const torch::optim::RMSpropOptions& o, const OptimizerExtras& extras) {
  return spec_of(kernels::RmsProp{.lr = o.lr(),
                                  .alpha = o.alpha(),
                                  .eps = o.eps(),
                                  .momentum = o.momentum(),
                                  .centered = o.centered(),
                                  .regulariser = regulariser(o.weight_decay(), extras)},
                 extras);
}

OptimizerSpec optimizer_spec(const torch::optim::AdagradOptions& o, const OptimizerExtras& extras) {
  OptimizerSpec spec = spec_of(
      kernels::Adagrad{.lr = o.lr(), .lr_decay = o.lr_decay(), .eps = o.eps(), .regulariser = regulariser(o.weight_decay(), extras)},
      extras);
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
                               .regulariser = regulariser(o.weight_decay(), extras)},
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
                               .regulariser = regulariser(0, extras)},
                 extras);
}

Optimizer::Optimizer(std::shared_ptr<Replica> replica) : replica_(std::move(replica)) {}
void Optimizer::step() { replica_->step(); }
void Optimizer::zero_grad() { replica_->zero_grad(); }
double Optimizer::lr() const { return replica_->updater().lr(); }
void Optimizer::set_lr(double lr) { replica_->updater().set_lr(lr); }
std::int64_t Optimizer::steps() const { return replica_->steps(); }
double Optimizer::grad_norm() const { return replica_->norm(); }

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  replica_->settle();
  auto& updater = replica_->updater();
  const auto arrays = state_names(updater.spec().rule);
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < replica_->params().size(); ++i) {
    const int param = static_cast<int>(i);
    const at::Tensor& like = replica_->params()[i];
    for (std::size_t array = 0; array < arrays.size(); ++array) {
      state.emplace_back(replica_->names()[i] + "." + arrays[array],
                         at::from_blob(updater.state(array, param), like.sizes(), at::kFloat).clone());
    }
    state.emplace_back(replica_->names()[i] + ".step", at::scalar_tensor(updater.steps(param), at::kLong));
  }
  state.emplace_back("steps", at::scalar_tensor(replica_->steps(), at::kLong));
  return state;
}

void Optimizer::load_state(const std::vector<std::pair<std::string, at::Tensor>>& given) {
  std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  const auto expected = state();
  for (const auto& [name, like] : expected) {
    const auto found = by_name.find(name);
    WEFT_REQUIRE(found != by_name.end(), "optimiser state has no '" + name + "'");
    WEFT_REQUIRE(found->second.sizes() == like.sizes() && found->second.scalar_type() == like.scalar_type(),
                 "optimiser state '" + name + "' has another shape or type than the parameter needs");
  }
  WEFT_REQUIRE(by_name.size() == expected.size(), "optimiser state holds entries that this optimiser does not have");
  auto& updater = replica_->updater();
  const auto arrays = state_names(updater.spec().rule);
  for (std::size_t i = 0; i < replica_->params().size(); ++i) {
    const int param = static_cast<int>(i);
    for (std::size_t array = 0; array < arrays.size() && replica_->writes(); ++array) {
      const at::Tensor value = by_name.at(replica_->names()[i] + "." + arrays[array]).contiguous();
      std::memcpy(updater.state(array, param), value.const_data_ptr<float>(), static_cast<std::size_t>(value.numel()) * sizeof(float));
    }
    updater.steps(param) = by_name.at(replica_->names()[i] + ".step").item<int64_t>();
  }
  replica_->set_steps(by_name.at("steps").item<int64_t>());
  if (replica_->group().size() > 1) replica_->group().barrier();
}

}  // namespace weft::parallel
