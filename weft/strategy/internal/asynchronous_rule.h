// A rule whose workers exchange at their own time: the period counts the steps of this worker.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

#include "weft/strategy/internal/flat_rule.h"

namespace weft::strategy::internal {

class AsynchronousRule : public FlatRule {
 public:
  AsynchronousRule(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)),
        sync_steps_(strategy.sync_steps),
        since_(at::zeros({1}, at::kDouble)) {}

  State state() override {
    State state = FlatRule::state();
    state.own = {since_};
    return state;
  }
  void reset_own() override { since_.zero_(); }
  Staleness staleness() const override { return staleness_; }

 protected:
  void start() override { since_.zero_(); }
  bool is_due(const Step& step) override {
    double& since = *since_.mutable_data_ptr<double>();
    ++since;
    if (step.number > sync_steps_ && since < static_cast<double>(period())) return false;
    since = 0;
    return true;
  }
  void add_staleness(std::int64_t exchanges) { staleness_.add(exchanges); }

 private:
  const std::int64_t sync_steps_;
  at::Tensor since_;  // [1]: steps since the last exchange
  Staleness staleness_;
};

}  // namespace weft::strategy::internal
