// Elastic averaging SGD, synchronous: the workers are tied to a center by a spring, and explore
// around it.
//
//   x_i = x_i - alpha * (x_i - center)
//   center = (1 - beta) * center + beta * mean of x_j,   alpha = beta / workers
//
// both from the values before. Zhang, Choromanska and LeCun: Deep learning with elastic averaging
// SGD, 2015 (arXiv:1412.6651), equations 5 and 6 with their choice of alpha. With SGD and momentum
// in the workers it is their EAMSGD. Each worker has a copy of the center, with the same bits.
//
// Sends: the difference to the center, once each period, through the codec if there is one.
//
// Limits: the result is the center, which lags behind the workers by about period / beta steps
// while the learning rate is high. A worker computes with a part of the batch at the learning rate
// of the whole, and its weights return to the others only by alpha in an exchange. So workers drift
// apart as with local SGD of the period
//
//   period * (1 + q) / (1 - q),   q = (1 - alpha)^2: about period * workers / beta
//
// An exchange leaves workers * mean + center in place, so the learning rate of all together is
// workers / (workers + 1) of that of synchronous training. beta must be in (0, 1], where the center
// stays between the workers and itself. easgd_bound() has the paper's bound on learning rates.
#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/mean_rule.h"

namespace weft::strategy::internal {
namespace {

class Easgd final : public MeanRule {
 public:
  Easgd(const Strategy& strategy, Part part)
      : MeanRule(strategy, std::move(part)), beta_(strategy.beta), center_(weights().zeros()) {
    add_state("center", center_);
  }

 private:
  void start() override {
    MeanRule::start();
    center_.copy_(weights().read());
  }
  void exchange(const Step& step) override {
    at::Tensor x = weights().read();
    at::Tensor stretch = x - center_;
    x.sub_(stretch, beta_ / size());
    weights().write(x);
    take_mean(stretch, step);
    center_.add_(stretch, beta_);
  }
  at::Tensor result_weights() override { return center_.clone(); }

  const double beta_;
  at::Tensor center_;
};

}  // namespace

std::unique_ptr<Rule> easgd(const Strategy& strategy, Part part) {
  return std::make_unique<Easgd>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
