// Update rules of optimizers: SGD, RMSprop, Adagrad, Adam, AdamW, Lion, LARS, LAMB, Adafactor and
// Muon. Assigns a rule to each parameter and does one step over flat memory.
//
// The equations of the first five are torch's, the others' those of their papers. float32 uses the
// kernels (weft/kernels/update.h), float64 plain loops. The last four need sums over whole tensors,
// and have functions of their own (layerwise.h, adafactor.h, muon.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "weft/kernels/update.h"
#include "weft/optim/adafactor.h"
#include "weft/optim/flat_step.h"
#include "weft/optim/layerwise.h"
#include "weft/optim/muon.h"

namespace weft::optim {

using UpdateRule = std::variant<kernels::Sgd, kernels::RmsProp, kernels::Adagrad, kernels::Adam,
                                kernels::Lion, Lars, Lamb, Adafactor, Muon>;

// A parameter group, as in torch: parameters with options of their own, selected by their qualified
// names.
struct ParamGroup {
  std::function<bool(const std::string& name)> which;
  // Factor of the rule's learning rate, also after set_lr(). 0: the parameters do not change.
  double lr_scale = 1;
  double decay_scale = 1;  // Factor of the rule's weight decay and L1 penalty.
  // Rule that replaces the spec's, for other hyper-parameters (betas, momentum, decay …);
  // optimizer_spec(…).rule makes one. It must have the same kind and the same state arrays. Its
  // learning rate is ignored; lr_scale applies to that of the spec's rule.
  std::optional<UpdateRule> rule = std::nullopt;
};

struct OptimizerSpec {
  UpdateRule rule = kernels::Sgd{};
  double initial_accumulator = 0.0;  // First value of Adagrad's accumulator.
  double max_grad_norm = 0.0;
  // Parameters, by their qualified names, without weight decay and L1 penalty: usually biases and
  // normalization. Empty: none.
  std::function<bool(const std::string& name)> no_decay;
  // Muon: parameters, by their qualified names, that AdamW updates although they have two
  // dimensions or more: usually embeddings and the last layer. Empty: none.
  std::function<bool(const std::string& name)> not_orthogonal;
  // Parameter groups. A parameter belongs to the first group that has it.
  std::vector<ParamGroup> groups;
};

// Returns the factor that limits a gradient of this norm to `most`: torch's clip_grad_norm_, with
// its guard against a norm of zero. NaN if the norm is.
inline double clip_factor(double norm, double most) {
  const double factor = most / (norm + 1e-6);
  return factor >= 1 ? 1 : factor;
}

// Names that torch gives to the arrays of this rule with these options, in order:
// "momentum_buffer", "exp_avg", …. The arrays have the shape of the parameter.
std::vector<std::string> state_names(const UpdateRule& rule);
// State of a tensor that each rank keeps whole: the moments of Adafactor. None for other rules.
struct TensorState {
  std::string name;                 // "exp_avg_sq_row", "exp_avg_sq_col" or "exp_avg_sq"
  std::vector<std::int64_t> sizes;  // Shape of the array.
};
std::vector<TensorState> tensor_states(const UpdateRule& rule,
                                       const std::vector<std::int64_t>& sizes);
// Name as in a recipe: "sgd", …; "adam" also for AdamW.
std::string name_of(const UpdateRule& rule);
// True for rules that need sums over whole tensors: LARS, LAMB, Adafactor and Muon.
bool needs_whole_tensors(const UpdateRule& rule);
// Throws Error(kInvalidArgument) for options that torch::optim refuses: negative numbers and NaN,
// betas outside [0, 1), and Nesterov momentum without momentum or with dampening. Also for
// Adafactor's decay_power above 0 or not finite, and a clip that is not above 0.
void check_rule(const UpdateRule& rule);
// Returns the rule with its weight decay and L1 penalty times `scale`.
UpdateRule with_decay(const UpdateRule& rule, double scale);
double lr_of(const UpdateRule& rule);
void set_lr(UpdateRule& rule, double lr);

// The rule of each parameter under a spec: the rule of its group, without decay if no_decay selects
// the parameter.
class ParamRules {
 public:
  // `names` are those of all parameters. Throws Error(kInvalidArgument) for a rule that
  // check_rule() refuses, for a scale that is negative or not finite, and for a group's rule of
  // another kind or with another state.
  ParamRules(const OptimizerSpec& spec, const std::vector<std::string>& names);
  // Rule of parameter number `param`, where the spec's rule is now `rule`.
  UpdateRule of(std::size_t param, const UpdateRule& rule) const;

 private:
  struct Own {
    double lr = 1, decay = 1;
    std::optional<UpdateRule> rule;
  };
  std::vector<Own> own_;  // By parameter.
};

// Does the step: writes weight and state. Pure functions over disjoint memory: any thread may call
// them. Throws Error(kInvalidArgument) for a rule that needs_whole_tensors().
void update_flat(const UpdateRule& rule, const FlatStep<float>& at);
void update_flat(const UpdateRule& rule, const FlatStep<double>& at);

}  // namespace weft::optim
