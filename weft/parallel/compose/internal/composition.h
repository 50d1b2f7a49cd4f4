// What the passes of parallelize() make of a model, on one rank: its stages with their parameters,
// the groups, the engine's options, the pipeline.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/caught/caught.h"
#include "weft/engine/gradient_check.h"
#include "weft/engine/sharded.h"
#include "weft/parallel/compose/internal/any_order.h"
#include "weft/parallel/compose/internal/made_up.h"
#include "weft/parallel/compose/internal/own_modules.h"
#include "weft/parallel/compose/internal/statistics.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::parallel::internal {

// Position of a parameter of this rank in the whole model.
struct Parameter {
  std::string own;    // "<block>.<name>" in the stage
  std::string whole;  // in the whole model; another name if it is a copy of another stage's
  std::optional<Slice> slice;       // over tp
  std::optional<Slice> expert;      // over ep
  std::vector<std::int64_t> sizes;  // whole
  bool trained = true;
  bool tied = false;  // tied with another block's parameter
  bool copy = false;  // a copy of a tied parameter
  bool edge = false;  // of the model's first or last block: an embedding or a head
};

// A stage: blocks that a rank runs one after the other, and the owner of their parameters.
struct Stage {
  int number = 0;
  int first = 0;  // number of the first block
  std::vector<Block> blocks;
  std::vector<std::string> names;
  std::vector<TensorParallel> tp;  // by block
  std::vector<Parameter> parameters;
  Statistics statistics;
  bool tied = false;                             // tied with other stages
  std::shared_ptr<engine::GradientCheck> check;  // null: gradients are not checked
  std::unique_ptr<engine::Sharded> sharded;      // null: no parameters
  std::unique_ptr<engine::Sharded::NoSync> kept;
  std::unique_ptr<GradientTree> tree;  // sums its gradients; null: autograd adds them
  std::unique_ptr<MadeUp> made_up;     // null: the current micro-batch has samples

  const Parameter* find(const std::string& own) const;
  std::vector<at::Tensor> tied_weights() const;  // each once, although several blocks may tie it
  // Sets the modes of joined batch norms to those of the caller's, which they have replaced.
  std::vector<std::function<void()>> follow_modes;
};

// What the pipeline calls in a training step. See PipelineOptions.
struct PipelineCalls {
  std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> loss;
  std::function<void(const schedule::pipeline::Action&)> before, after;
};

struct Composition {
  Composition(BlockModel model_, Plan plan_, const Mesh& mesh_);

  // Number of this replica, whatever the mesh's order of axes.
  int replica() const {
    return (mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp")) * mesh.size("ep") +
           mesh.coordinate("ep");
  }
  // Ranks with samples of their own. A rank's number in this group is its replica().
  const Group& replicas() const { return mesh.along_in_order({"dp", "fsdp", "ep"}); }
  // Ranks with tokens of their own: those of cp share samples, but not positions.
  const Group& sharers() const {
    return model.experts > 0 && mesh.size("cp") > 1 ? mesh.along({"dp", "fsdp", "cp", "ep"})
                                                    : replicas();
  }
  const Group& copies() const { return mesh.along({"dp", "cp", "ep"}); }
  const Group& copies_of_experts() const { return mesh.along({"dp", "cp"}); }
  // Ranks that have the same blocks and slices.
  const Group& same_blocks() const { return mesh.along({"dp", "fsdp", "cp", "ep"}); }
  // Among ranks with the same parameters: whether their parts form the whole model.
  bool is_first_copy() const { return mesh.coordinate("dp") == 0 && mesh.coordinate("cp") == 0; }
  bool is_first_of_tp() const { return mesh.coordinate("tp") == 0; }
  bool is_first_of_ep() const { return mesh.coordinate("ep") == 0; }
  TensorParallel along_ep() const { return {mesh["ep"], 0}; }
  // The part of a parameter on this rank. Without slices over tp and ep, it is the whole.
  checkpoint::Rectangle place_of(const Parameter& parameter) const;
  engine::Sharded::Placing placing_of(const Stage& stage) const;

  double scale() const { return scaler ? scaler->scale() : 1; }
  // True for replicas of whole stages (the engine's stage 0): gradients are combined once per step.
  bool replicates() const { return sharding.stage == 0; }
  // True if a step with a gradient that is not finite is skipped.
  // Updates in backward leave nothing to skip. The plan's option is not always in force
  // (data_parallel_of).
  bool skips() const {
    return plan.skip_not_finite && !(replicates() && sharding.data_parallel.update_in_backward);
  }
  // Norm to which a step clips the gradients. 0: none.
  double max_norm() const;

  // Ends all groups.
  void abort(const Error& error) const;
  // Ends the groups if an exception is thrown on this rank, so that no peer waits.
  template <class Fn>
  auto guarded(const Fn& fn) const -> decltype(fn());
  // Throws on all ranks if `body` throws on one: there with its own code and text, elsewhere with
  // the text of the first that failed. An error of the group itself ends all groups.
  void try_on_all_ranks(const std::string& operation, const std::function<void()>& body) const;
  void wait_for_weights();

  const BlockModel model;
  const Plan plan;  // with the actual micro_batches
  const Mesh mesh;
  PipelineCalls calls;  // set before the passes run
  // Results of the passes, in their order.
  schedule::pipeline::Request request;
  std::vector<int> cuts;
  std::vector<Stage> stages;
  OwnModules own_modules;
  // True if all ranks keep replicas of their whole stages. All ranks have the same value, since the
  // weights of losses and the order of collectives depend on it.
  bool keeps_whole = false;
  Contexts contexts;  // of the loss
  Precision precision = Precision::kAsItIs;
  std::optional<LossScale> scaler;
  std::unique_ptr<Pipeline> pipeline;
  engine::ShardedOptions sharding;
  optim::UpdateRule rule;  // with the current learning rate
  std::int64_t steps = 0;
};

template <class Fn>
auto Composition::guarded(const Fn& fn) const -> decltype(fn()) {
  try {
    return fn();
  } catch (const std::exception& error) {
    abort(as_ended(error, "rank " + std::to_string(mesh.world().rank())));
    throw;
  }
}

// libtorch's error about the inputs of `what`, such as wrong shapes, as one line.
Error in_plain_words(const std::string& what, const Tensors& inputs, const c10::Error& error);

template <class Fn>
auto in_one_line(const std::string& what, const Tensors& inputs, const Fn& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const c10::DistBackendError&) {
    throw;
  } catch (const c10::Error& error) {
    throw in_plain_words(what, inputs, error);
  }
}

// Runs the passes. Returns the name of each pass, and what it did.
std::vector<std::pair<std::string, std::string>> compose(Composition& composition);

}  // namespace weft::parallel::internal
