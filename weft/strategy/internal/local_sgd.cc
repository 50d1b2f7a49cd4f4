// Local SGD: every `period` steps, the workers take the mean of their weights.
//
//   x_i = mean over the workers j of x_j
//
// Stich: Local SGD converges fast and communicates little, 2019 (arXiv:1805.09767). With sync_steps
// it is post-local SGD (Lin and others: Don't use large mini-batches, use local SGD, 2020,
// arXiv:1808.07217). With adapt_steps it is AdaComm (Wang and Joshi 2019, arXiv:1810.08313).
//
// Sends: the weights, once each period. With a codec: the change since the last exchange.
// Limits: weights differ between exchanges, the more the longer the period and the more the
// workers' data differ. With period 1, SGD, and also SGD with momentum, gives the weights of
// synchronous training, since the mean of the velocities is the velocity of the mean. Adam does
// not, because its step is not linear in the gradients.
#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/mean_rule.h"

namespace weft::strategy::internal {
namespace {

class LocalSgd final : public MeanRule {
 public:
  LocalSgd(const Strategy& strategy, Part part) : MeanRule(strategy, std::move(part)) {
    if (strategy.codec == "none") return;
    anchor_ = weights().zeros();
    add_state("anchor", anchor_);
  }

 private:
  void start() override {
    MeanRule::start();
    if (anchor_.defined()) anchor_.copy_(weights().read());
  }
  void exchange(const Step& step) override {
    at::Tensor x = weights().read();
    if (!anchor_.defined()) {
      take_mean(x, step);
      return weights().write(x);
    }
    x.sub_(anchor_);
    take_mean(x, step);
    anchor_.add_(x);
    weights().write(anchor_);
  }

  at::Tensor anchor_;  // the weights after the last exchange; only with a codec
};

}  // namespace

std::unique_ptr<Rule> local_sgd(const Strategy& strategy, Part part) {
  return std::make_unique<LocalSgd>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
