// Optimizers fused over flat memory, sharded over the ranks of a host: SGD, RMSprop, Adagrad, Adam and AdamW with torch::optim's options.
//
// The arithmetic is torch's (weft/kernels/update.h states the tolerance). step() reduces gradients and updates weights in one pass: each
// rank does the pieces that are its own, then any that peers have not begun, so that a late rank finds less to do. The result does not
// depend on who did what. float32 and float64 parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/optim/update_rule.h"

namespace torch::optim {
struct SGDOptions;
struct RMSpropOptions;
struct AdagradOptions;
struct AdamOptions;
struct AdamWOptions;
}  // namespace torch::optim

namespace weft::parallel {

class Replica;

using optim::lr_of;
using optim::OptimizerSpec;
using optim::ParamGroup;
using optim::ParamRules;
using optim::set_lr;
using optim::state_names;
using optim::UpdateRule;

// What torch's options do not have.
struct OptimizerExtras {
  double l1 = 0.0;             // adds l1 * sign(weight) to the gradient
  double max_grad_norm = 0.0;  // > 0: the gradient is scaled so that its global 2-norm is at most this (waits for all gradients)
};

OptimizerSpec optimizer_spec(const torch::optim::SGDOptions& options, const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::RMSpropOptions& options, const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::AdagradOptions& options, const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::AdamOptions& options, const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::AdamWOptions& options, const OptimizerExtras& extras);

class Optimizer {
 public:
  explicit Optimizer(std::shared_ptr<Replica> replica);

  // Averages the gradients over the ranks and updates the weights; returns when every rank may read the new ones. Collective: every rank
  // calls it for every step, a rank without a batch too. Throws what Group's operations throw; weights are then a mixture of two steps.
  void step();
  // Drops all gradients of this rank, so that the next backward makes new ones where peers can read them.
  void zero_grad();

  double lr() const;
  void set_lr(double lr);
  // Optimizer steps done.
  std::int64_t steps() const;
  // The global gradient norm of the last step before clipping; 0 without max_grad_norm.
  double grad_norm() const;

  // Named state for a checkpoint: "<parameter>.momentum" and the like, shaped as the parameter, and "<parameter>.step" (int64). Copies.
  // Every rank may call it after step(); all get the same.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  // Collective. Names or shapes that do not fit: Error(kInvalidArgument) naming the first, state unchanged.
  void load_state(const std::vector<std::pair<std::string, at::Tensor>>& state);

 private:
  std::shared_ptr<Replica> replica_;
};

}  // namespace weft::parallel
