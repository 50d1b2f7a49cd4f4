// DOWNPOUR, asynchronous SGD around a center: a worker adds what it has learned since its last
// exchange, and goes on from the center.
//
//   center = center + lr / workers * (x_i - read_i),   x_i = read_i = center
//
// Dean and others: Large scale distributed deep networks, 2012. There lr is the number of workers:
// near an optimum of curvature h, the center's distance is then multiplied by
// 1 - workers * (1 - (1 - learning rate * h)^period), which is below -1 for long periods. Here 1 is
// the default, which keeps the effective learning rate of synchronous training, and is stable. With
// period 1 it is asynchronous SGD on shared weights, as in Hogwild! (Niu and others 2011,
// arXiv:1106.5730), with a lock for each chunk, so that dense updates are not lost. With staleness
// s it is stale synchronous parallel (Ho and others 2013); s = 0 is synchronous training.
//
// With delay_compensation = lambda, the gradient g is corrected by an estimate of its change since
// read_i, for which the diagonal of g g^T stands for the Hessian:
//
//   g + lambda * g * g * (center - read_i),   g = (read_i - x_i) / worker's learning rate
//
// Zheng and others: Asynchronous stochastic gradient descent with delay compensation, 2017
// (arXiv:1609.08326), equation 10: DC-ASGD-c. It is theirs for workers with plain SGD. With
// momentum, g is the velocity, so a good lambda is smaller.
//
// Sends: nothing between hosts with a center in shared memory. Each exchange writes and reads the
// vector once; the correction reads it once more. On servers, both may go through a codec.
// Limits: a result depends on who comes first, so no two runs have the same bits; with staleness 0
// they differ by rounding. Changes that were computed from old weights slow training down, the more
// the more workers there are and the larger the learning rate and the momentum are.
#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/center_rule.h"

namespace weft::strategy::internal {
namespace {

class Downpour final : public CenterRule {
 public:
  Downpour(const Strategy& strategy, Part part)
      : CenterRule(strategy, std::move(part)),
        scale_((strategy.lr < 0 ? 1.0 : strategy.lr) / size()),
        lambda_(strategy.delay_compensation),
        read_(weights().zeros()) {}

  State state() override {
    State state = CenterRule::state();
    state.own.push_back(read_);
    return state;
  }
  void reset_own() override {
    CenterRule::reset_own();
    read_.copy_(weights().read());
  }

 private:
  void start() override {
    CenterRule::start();
    read_.copy_(weights().read());
  }

  void exchange(const Step& step) override {
    begin_exchange(step);
    at::Tensor change = weights().read().sub_(read_);
    if (lambda_ > 0 && step.lr > 0) compensate(change, step.lr);
    add(change.mul_(scale_));
    wait_for_all(Center::Clock::kAdded);
    pull(read_);
    weights().write(read_);
  }

  // The change is -lr g, so that of the corrected gradient is change - lambda / lr change^2 (…).
  void compensate(at::Tensor& change, double lr) {
    at::Tensor drift = weights().zeros();
    center().pull(0, drift);
    drift.sub_(read_);
    change.sub_(drift.mul_(change).mul_(change), lambda_ / lr);
  }

  const double scale_, lambda_;
  at::Tensor read_;  // the center as this worker has read it
};

}  // namespace

std::unique_ptr<Rule> downpour(const Strategy& strategy, Part part) {
  return std::make_unique<Downpour>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
