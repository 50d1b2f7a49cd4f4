// Fused optimizers over flat memory, sharded over the ranks of a host: SGD, RMSprop, Adagrad, Adam
// and AdamW with the options of torch::optim; Lion, LARS, LAMB, Adafactor and Muon.
//
// The arithmetic is torch's (weft/kernels/update.h states the tolerance). Parameters are float32 or
// float64. step() reduces gradients and updates weights in one pass. Each rank first does its own
// pieces, then any pieces that peers have not begun, so a late rank finds less to do. The result
// does not depend on which rank did which piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/optim/update_rule.h"

namespace torch::optim {
struct SGDOptions;
struct RMSpropOptions;
struct AdagradOptions;
struct AdamOptions;
struct AdamWOptions;
}  // namespace torch::optim

namespace weft::engine {

class Binding;

using optim::lr_of;
using optim::OptimizerSpec;
using optim::ParamGroup;
using optim::ParamRules;
using optim::set_lr;
using optim::state_names;
using optim::UpdateRule;

// Options that torch::optim does not have.
struct OptimizerExtras {
  // L1 penalty: adds l1 * sign(weight) to the gradient.
  double l1 = 0.0;
  // > 0: largest global 2-norm of the gradient; a gradient above it is scaled down to it. Clipping
  // waits for all gradients.
  double max_grad_norm = 0.0;
};

// Throw Error(kInvalidArgument) for options that torch::optim refuses (optim::check_rule).
OptimizerSpec optimizer_spec(const torch::optim::SGDOptions& options,
                             const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::RMSpropOptions& options,
                             const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::AdagradOptions& options,
                             const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::AdamOptions& options,
                             const OptimizerExtras& extras);
OptimizerSpec optimizer_spec(const torch::optim::AdamWOptions& options,
                             const OptimizerExtras& extras);
// Rules that torch::optim does not have: kernels::Lion, optim::Lars, Lamb, Adafactor and Muon.
// extras.l1 adds to the rule's own. Throws kInvalidArgument as above, and for an L1 penalty with a
// rule that has none.
OptimizerSpec optimizer_spec(UpdateRule rule, const OptimizerExtras& extras);

// For optim::needs_whole_tensors() rules: how tensors are divided, besides the group of the model.
struct WholeTensors {
  // Ranks of other groups with the other parts of some parameters (tensor parallelism, experts).
  struct Split {
    Group group;
    std::function<bool(const std::string& parameter)> which;
  };
  std::vector<Split> splits = {};
  // Sums have the same bits for any division (optim/tensor_sums.h). Slower.
  bool exact = false;
};

class Optimizer {
 public:
  explicit Optimizer(std::shared_ptr<Binding> binding);

  // Averages the gradients over the ranks and updates the weights. Returns when every rank may read
  // the new ones. Collective: every rank calls it for every step, also a rank without a batch.
  // Throws as Group's operations do; the weights are then a mixture of two steps.
  void step();
  // Drops all gradients of this rank, so that the next backward makes new ones where peers can read
  // them. If they were made outside no_sync() and since the last step, all ranks must drop theirs;
  // the next backward() or step() waits for them. With update_in_backward, and with a codec over
  // messages, such gradients are with the peers already: the next backward() or step() throws
  // kInvalidArgument.
  void zero_grad();

  // Learning rate. It outlives the model's group.
  double lr() const;
  void set_lr(double lr);
  // Number of optimizer steps done.
  std::int64_t steps() const;
  // Global gradient norm of the last step before clipping; 0 without max_grad_norm.
  double grad_norm() const;

  // Named state for a checkpoint, as copies: "<parameter>.momentum_buffer" and the like, in the
  // parameter's shape, and "<parameter>.step" (int64). Every rank may call it after step(); all
  // ranks get the same.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  // Loads what state() returned. Weights that were copied in place before count. Collective. Throws
  // Error(kInvalidArgument), naming the first name or shape that does not fit; the state is then
  // unchanged. If it does not fit on one rank, the others throw kAborted with the reason.
  void load_state(const std::vector<std::pair<std::string, at::Tensor>>& state);

 private:
  std::shared_ptr<Binding> binding_;
};

}  // namespace weft::engine
