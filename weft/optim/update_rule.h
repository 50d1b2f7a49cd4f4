// Update rules of optimizers: SGD, RMSprop, Adagrad, Adam and AdamW, which parameters follow which, and one step of any of them over flat
// memory, wherever weights and state lie.
//
// float32 goes through the kernels (weft/kernels/update.h); float64 follows the same equations, torch's, in plain loops.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "weft/kernels/update.h"

namespace weft::optim {

using UpdateRule = std::variant<kernels::Sgd, kernels::RmsProp, kernels::Adagrad, kernels::Adam>;

// Parameters that are updated otherwise than the rest, by their qualified names: torch's parameter groups.
struct ParamGroup {
  std::function<bool(const std::string& name)> which;
  double lr_scale = 1;     // times the rule's learning rate, whatever set_lr() makes of that; 0: they stay as they are
  double decay_scale = 1;  // times its weight decay and L1
  // What takes the rule's place, for other hyper-parameters (betas, momentum, decay …); optimizer_spec(…).rule makes one. It is of the same
  // kind and keeps the same state. Its learning rate does not count: lr_scale of the others' does.
  std::optional<UpdateRule> rule = std::nullopt;
};

struct OptimizerSpec {
  UpdateRule rule = kernels::Sgd{};
  double initial_accumulator = 0.0;  // Adagrad's
  double max_grad_norm = 0.0;
  // Parameters (by their qualified name) that go without weight decay and L1: biases and normalisation, usually. Empty: none do.
  std::function<bool(const std::string& name)> no_decay;
  std::vector<ParamGroup> groups;  // the first that has a parameter counts for it
};

// What gradients of this norm are multiplied by, so that it is at most `most`: torch's clip_grad_norm_, with its guard against a norm of
// zero.
inline double clip_factor(double norm, double most) { return std::min(1.0, most / (norm + 1e-6)); }

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

}  // namespace weft::optim
