// Elastic averaging, asynchronous: each worker and a center are pulled to each other, at the
// worker's own time.
//
//   d = beta / workers * (x_i - center),   x_i = x_i - d,   center = center + d
//
// Zhang, Choromanska and LeCun 2015 (arXiv:1412.6651), algorithm 1; with momentum in the workers
// their EAMSGD, algorithm 2. With staleness 0 and equal workers it is the synchronous rule.
//
// Sends: nothing between hosts with a center in shared memory. Each exchange reads and writes the
// vector once.
// Limits: as downpour.cc, but a worker's weights are its own, so that old values of the center do
// less harm. The result is the center, which lags behind the workers by about period / beta steps.
#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/center_rule.h"

namespace weft::strategy::internal {
namespace {

class EasgdAsync final : public CenterRule {
 public:
  EasgdAsync(const Strategy& strategy, Part part)
      : CenterRule(strategy, std::move(part)), alpha_(strategy.beta / size()) {}

 private:
  void exchange(const Step& step) override {
    begin_exchange(step);
    at::Tensor x = weights().read(), center = weights().zeros();
    pull(center);
    const at::Tensor pulled = (x - center).mul_(alpha_);
    weights().write(x.sub_(pulled));
    wait_for_all(Center::Clock::kPulled);
    add(pulled);
  }

  const double alpha_;
};

}  // namespace

std::unique_ptr<Rule> easgd_async(const Strategy& strategy, Part part) {
  return std::make_unique<EasgdAsync>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
