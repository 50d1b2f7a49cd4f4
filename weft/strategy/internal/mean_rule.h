// A rule whose exchange takes one mean over the workers, through the codec if there is one.
#pragma once

#include <utility>

#include "weft/strategy/internal/flat_rule.h"
#include "weft/strategy/internal/mean.h"

namespace weft::strategy::internal {

class MeanRule : public FlatRule {
 public:
  MeanRule(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)),
        mean_(this->part().workers, strategy.codec, weights(), 0) {}

  State state() override {
    State state = FlatRule::state();
    state.own = mean_.state();
    return state;
  }

 protected:
  bool exchanges_together() const override { return true; }
  // Rules that override it call this one too.
  void start() override { mean_.restart(); }
  // In place. Collective.
  void take_mean(at::Tensor& flat, const Step& step) {
    mean_(flat, {.step = step.number - 1, .exchange = round_of(step) - 1});
  }

 private:
  Mean mean_;
};

}  // namespace weft::strategy::internal
