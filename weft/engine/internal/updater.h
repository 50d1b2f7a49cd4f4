// Applies an optimiser's rule to weights and state that lie flat, 64-byte aligned by parameter, in memory of its own or shared by the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/engine/internal/sync.h"
#include "weft/engine/update_rule.h"

namespace weft::parallel::internal {

// The places of parameters in flat float32 memory.
struct Layout {
  std::vector<std::int64_t> offsets;  // elements, multiples of 16
  std::int64_t elements = 0;
};
Layout layout_of(const std::vector<at::Tensor>& params);

class RuleUpdater final : public Updater {
 public:
  // `weights`: where each parameter lies. `state`: arrays of layout.elements each, as many as state_names(spec.rule) has.
  RuleUpdater(OptimizerSpec spec, Layout layout, std::vector<float*> weights, std::vector<float*> state,
              const std::vector<std::string>& names);

  void update(int param, std::int64_t begin, std::int64_t end, const float* gradient) override;
  compress::Momentum hand_over_momentum() override;
  // The step is over: counts it for the parameters that had a gradient.
  void stepped(const std::vector<bool>& used);

  // The updates of this step are still to come: they follow the rule as it is now, until stepped().
  void hold() { held_ = spec_.rule; }
  bool held() const { return held_.has_value(); }

  double lr() const;
  void set_lr(double lr);
  const OptimizerSpec& spec() const { return spec_; }
  std::int64_t& steps(int param) { return steps_[static_cast<std::size_t>(param)]; }
  float* state(std::size_t array, int param) const;

 private:
  void update_with_velocity(const UpdateRule& rule, const FlatStep<float>& at) const;

  OptimizerSpec spec_;
  bool velocity_comes_ = false;  // in gradients
  std::optional<UpdateRule> held_;
  Layout layout_;
  std::vector<float*> weights_, state_;
  std::vector<std::int64_t> steps_;  // done, by parameter
  const ParamRules rules_;
};

}  // namespace weft::parallel::internal
