// Slow momentum: local SGD whose exchange makes a step with momentum.
//
//   d = (anchor - mean of x_j) / lr,   u = momentum * u + d
//   anchor = anchor - slow_lr * lr * u,   x_i = anchor
//
// with the workers' learning rate lr. Wang, Tantia, Ballas and Rabbat: SlowMo: improving
// communication-efficient distributed SGD with slow momentum, 2020 (arXiv:1910.00643), algorithm 1.
// The workers keep their own optimizers' state at an exchange ("maintain").
//
// Sends: the change of the weights, once each period, through the codec if there is one.
//
// Limits: slow_lr 1 and momentum 0 are local SGD. Momentum multiplies the effective learning rate
// by 1 / (1 - momentum), so a large one needs a smaller rate or a warm-up.
#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/mean_rule.h"

namespace weft::strategy::internal {
namespace {

class SlowMomentum final : public MeanRule {
 public:
  SlowMomentum(const Strategy& strategy, Part part)
      : MeanRule(strategy, std::move(part)),
        lr_(strategy.lr < 0 ? 1.0 : strategy.lr),
        momentum_(strategy.momentum < 0 ? 0.5 : strategy.momentum),
        anchor_(weights().zeros()),
        velocity_(weights().zeros()) {
    add_state("anchor", anchor_);
    add_state("momentum", velocity_);
  }

 private:
  void start() override {
    MeanRule::start();
    anchor_.copy_(weights().read());
    velocity_.zero_();
  }
  void exchange(const Step& step) override {
    at::Tensor change = anchor_ - weights().read();
    take_mean(change, step);
    velocity_.mul_(momentum_);
    if (step.lr > 0) velocity_.add_(change, 1 / step.lr);
    anchor_.sub_(velocity_, lr_ * step.lr);
    weights().write(anchor_);
  }

  const double lr_, momentum_;
  at::Tensor anchor_, velocity_;
};

}  // namespace

std::unique_ptr<Rule> slow_momentum(const Strategy& strategy, Part part) {
  return std::make_unique<SlowMomentum>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
