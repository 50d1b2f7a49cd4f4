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

#include "weft/strategy/internal/flat_rule.h"
#include "weft/strategy/internal/mean.h"

namespace weft::strategy::internal {
namespace {

class LocalSgd final : public FlatRule {
 public:
  LocalSgd(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)),
        mean_(this->part().workers, strategy.codec, weights(), 0) {
    if (strategy.codec == "none") return;
    anchor_ = weights().zeros();
    keep("anchor", anchor_);
  }

  State state() override {
    State state = FlatRule::state();
    state.own = mean_.state();
    return state;
  }

 private:
  void start() override {
    if (anchor_.defined()) anchor_.copy_(weights().read());
  }
  void exchange(const Step& step) override {
    at::Tensor x = weights().read();
    if (!anchor_.defined()) {
      mean_(x, step.number - 1);
      return weights().write(x);
    }
    x.sub_(anchor_);
    mean_(x, step.number - 1);
    anchor_.add_(x);
    weights().write(anchor_);
  }

  Mean mean_;
  at::Tensor anchor_;  // the weights after the last exchange; only with a codec
};

}  // namespace

std::unique_ptr<Rule> local_sgd(const Strategy& strategy, Part part) {
  return std::make_unique<LocalSgd>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
