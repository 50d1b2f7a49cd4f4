// One step of an optimiser's rule over flat memory, whichever rule it is: for those who keep weights and state where they like.
//
// float32 goes through the kernels (weft/kernels/update.h); float64 follows the same equations, torch's, in plain loops.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/engine/optimizer.h"

namespace weft::parallel {

// "momentum_buffer", "exp_avg", …: what torch calls the arrays that this rule with these options keeps, in their order.
std::vector<std::string> state_names(const UpdateRule& rule);
// The rule of parameters that go with so much of its weight decay and L1.
UpdateRule with_decay(const UpdateRule& rule, double scale);
double lr_of(const UpdateRule& rule);
void set_lr(UpdateRule& rule, double lr);

// Which rule each parameter follows under a spec: that of its group, without decay where the spec says so.
class ParamRules {
 public:
  // `names`: of all parameters. Throws Error(kInvalidArgument) for a scale that is negative or not finite, and for a group's rule of
  // another kind or with another state.
  ParamRules(const OptimizerSpec& spec, const std::vector<std::string>& names);
  // Of parameter number `param`, where the others follow `rule`.
  UpdateRule of(std::size_t param, const UpdateRule& rule) const;

 private:
  struct Own {
    double lr = 1, decay = 1;
    std::optional<UpdateRule> rule;
  };
  std::vector<Own> own_;  // by parameter
};

// `count` elements; `state` as state_names() has them, the rest null. `step` counts from 1.
template <class Number>
struct FlatStep {
  Number* weight = nullptr;
  const Number* gradient = nullptr;
  std::array<Number*, 3> state{};
  std::int64_t count = 0;
  std::int64_t step = 1;
};
// Writes weight and state. Pure functions over disjoint memory: any thread.
void update_flat(const UpdateRule& rule, const FlatStep<float>& at);
void update_flat(const UpdateRule& rule, const FlatStep<double>& at);

}  // namespace weft::parallel
