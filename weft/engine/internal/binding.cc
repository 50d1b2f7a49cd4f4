#include "weft/engine/internal/binding.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "weft/base/error.h"

namespace weft::engine {

void Binding::bind(const Group& group) {
  unbind();
  auto groups = internal::ModelGroup::of(group);
  Engine::Context context{.blocks = {{.module = module_}},
                          .group = groups->gradients,
                          .options = {},
                          .program = &groups->program.backend()};
  context.options.stage = 0;
  context.options.average = options_.average;
  context.options.weights = options_.weights;
  context.options.data_parallel = options_;
  auto replica = std::make_shared<Replica>(std::move(context));
  replica->start();
  if (optimizer_) replica->use_optimizer(*optimizer_);
  replica_ = std::move(replica);
  groups_ = std::move(groups);
}

void Binding::unbind() {
  replica_.reset();
  groups_.reset();
  for (at::Tensor& param : module_->parameters(true)) param.mutable_grad().reset();
}

const std::shared_ptr<Replica>& Binding::replica() const {
  WEFT_REQUIRE(replica_ != nullptr,
               "the data-parallel model has no group yet: call bind(group), or train it with "
               "elastic::run(), which binds the models of its state");
  return replica_;
}

const Group& Binding::group() const {
  static_cast<void>(replica());
  return groups_->program;
}

void Binding::use_optimizer(OptimizerSpec spec) {
  WEFT_REQUIRE(!optimizer_, "optimizer(): the module has an optimizer already");
  if (replica_) replica_->use_optimizer(spec);
  optimizer_ = std::move(spec);
}

double Binding::lr() const { return optimizer_ ? optim::lr_of(optimizer_->rule) : 0; }

void Binding::set_lr(double lr) {
  if (!optimizer_) return;
  optim::set_lr(optimizer_->rule, lr);
  if (replica_) optim::set_lr(replica_->updates().spec().rule, lr);
}

}  // namespace weft::engine
