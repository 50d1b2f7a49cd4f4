// The composition of all forms of parallelism: one training step over any product of dp, fsdp, tp, pp, cp and ep that equals one process on
// the joined batch.
//
//   const Mesh mesh(world, {{"pp", 2}, {"dp", 0}, {"tp", 2}});
//   auto model = parallelize(blocks, {.optimizer = optimizer_spec(AdamWOptions(1e-3), {}), .micro_batches = 4}, mesh);
//   double loss = model.train_step({x}, {target});      // this replica's share of the batch; the mean over all shares
//   model.step();
//   model.zero_grad();
//
// It is a list of named passes (passes()), each of which does one thing to the blocks and says in a line what it did (describe()):
//
//   cut stages ► split sequence ► place experts ► split layers ► join batch norms ► precision ► recompute ► scale loss ► connect stages ►
//   replicate ► shard parameters ► clip
//
// A replica is what ranks of dp, fsdp and ep have of the batch: samples of their own. Ranks of tp, pp and cp share a replica's.
//
// In a step travel: what the layers of tensor parallelism do (parallel/tensor), attention over cp (parallel/context) and experts over ep
// (parallel/experts); at the cuts what Pipeline says; once a step what Sharded says of each stage's gradients, for each micro-batch what it
// gathers; 16 bytes all-reduced over the replicas (the loss), 8 more with ep (samples), and 8 over the world where the plan clips or
// scales.
//
// Gradients are averaged over dp, fsdp and cp, by samples. With ep each rank's loss counts by its samples beforehand (and for 1 / cp),
// since an expert's gradient has the tokens of all its ranks after backward; then gradients are summed, experts' over dp, fsdp and cp, all
// others' over ep too. Experts are balanced over all of dp, fsdp, cp and ep: whoever has tokens of its own.
//
// The same bits: whatever the schedule, the cuts and recomputation, for the same micro-batches (but for a weight that is tied within a
// stage here and over stages there); whatever the ZeRO stage and form. With Plan::micro_shards whatever the replicas, shards and stages
// too, as one process has them. Otherwise sums are in another order.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/slice.h"
#include "weft/parallel/compose/model.h"
#include "weft/parallel/compose/plan.h"
#include "weft/parallel/experts/context.h"
#include "weft/parallel/mesh/mesh.h"

namespace weft::parallel {

namespace internal {
class Composed;
}

struct PassInfo {
  const char* name;
  const char* what;
};
// In their order. A name in Plan::without leaves a pass out.
std::span<const PassInfo> passes();

// One thread at a time. Collective over the world: all ranks make it, and call each method but those that say otherwise, in one order.
// What goes wrong on one rank ends the groups of all: those of its host get kAborted at once, others kPeerLost or kTimeout.
class ParallelModel {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  explicit ParallelModel(std::unique_ptr<internal::Composed> composed);
  ~ParallelModel();
  ParallelModel(ParallelModel&&) noexcept;

  // Forward and backward over this replica's samples, which all its ranks give: inputs are read by the first stage's ranks and their first
  // dimension by all, targets by the last one's. Gives the mean loss over the samples of all replicas, on every rank. Gradients leave once,
  // after the last micro-batch, and add up until zero_grad(); each call counts 1 / accumulate. Replicas may differ in samples; one with
  // fewer than micro-batches, or none, computes what is missing on zeros that count nothing. Throws what the blocks, the loss and Group's
  // operations throw. Where the model has experts nothing is made up, since experts would count it: blocks compute on nothing.
  double train_step(const Tensors& inputs, const Tensors& targets);
  // The same without an exchange of the loss, for those who look at it every few steps. Gives this rank's part of the loss summed over the
  // samples of all replicas: one number; with Plan::micro_shards one for each of these, zeros for those of others. The sum over all ranks
  // is the batch's.
  std::vector<double> forward_backward(const Tensors& inputs, const Tensors& targets);
  // Updates the weights from the averaged gradients, clipped over the whole model. False: with loss scaling, on all ranks, where a gradient
  // is not finite: nothing was updated.
  bool step();
  void zero_grad();
  // Not collective. Until the weights are those of the last step(), with Plan::data_parallel.overlap_forward: for who reads them by
  // data_ptr() or in another thread. Blocks, evaluate(), predict() and state() wait by themselves.
  void wait_for_weights();
  // The loss without gradients, of modules in evaluation mode; otherwise as train_step().
  double evaluate(const Tensors& inputs, const Tensors& targets);
  // The last block's outputs for this replica's samples, on its last stage's ranks; empty elsewhere. Over cp whole, by BlockModel::join.
  Tensors predict(const Tensors& inputs);
  // The 2-norm of the whole model's averaged gradients, without scale: split parameters count every rank's part, whole and tied ones once.
  // After step() as it was before clipping, where the plan clips or scales.
  double grad_norm();

  // Not collective. Which share of a batch this rank gives, and of how many: the same on all ranks of tp, pp and cp.
  int replica() const;
  int replicas() const;
  // Not collective. All ranks set the same.
  double lr() const;
  void set_lr(double lr);
  // Steps done; skipped ones do not count. The loss scale: 1 without.
  std::int64_t steps() const;
  double loss_scale() const;

  // What one process's model would have, on the world's rank 0; the others get nothing. Parameters and buffers "<block>.<name>" (or by
  // Block::prefix), "<parameter>.exp_avg"
  // and the like, "<parameter>.step", "steps", and with loss scaling "loss_scale" and "loss_scale.good_steps". Rank 0 holds it whole.
  NamedTensors state();
  // Under any plan, by names. Every rank gives the whole (of a mapped file, which costs no memory) and takes what is its own. Names that
  // are missing, or of another shape: kInvalidArgument on all ranks, nothing changed. A loss scale is taken where this plan has one.
  void load_state(const NamedTensors& state);
  // This rank's slices of state(), by the same names, and of what the plan's codec remembers: the parts "model", "optimizer", "scaling"
  // and "codec" of a checkpoint. Views of the model's memory, valid until the next step() or load. Ranks that hold the same values divide
  // them, so that all ranks' slices together are the whole, once. No rank holds the whole. Not collective.
  checkpoint::Parts shards();
  // Under any plan: each rank reads its own part only of what any ranks have given as shards() or state(). Throws as load_state(); errors
  // of reading leave a mixture of values.
  void load_shards(const checkpoint::SliceSource& source);
  // The parameters alone: another model's weights, to begin with.
  void load_weights(const checkpoint::SliceSource& source);
  // What the plan's codec remembers of gradients that were not sent. False, on all ranks, and nothing is loaded, where the checkpoint has
  // that of another codec, mesh or cut, or none: then the codec begins without memory, and what it had not sent is lost, up to some
  // steps' worth. Throws Error(kCorrupt).
  bool load_codec(const checkpoint::Reader& saved);
  // The stage cuts of the model whose codec memory this checkpoint has; empty where that is of another mesh, or there is none. A resumed
  // run gives them as Plan::cuts, since cuts by measured times may differ from run to run, and the memory belongs to its cuts.
  static std::vector<int> cuts_of(const Mesh& mesh, const checkpoint::Reader& saved);
  // The averaged gradients, by parameter, on rank 0; after step() as clipped. Without those that nobody used.
  NamedTensors gradients();

  // Not collective. What the experts of this rank's blocks got while training since the last call, of all ranks that share the batch, by
  // "<block>.<layer>" (MixtureOfExperts::take_sum).
  std::map<std::string, ExpertLoad> take_expert_loads();

  // Not collective. This rank's bytes, as Sharded counts them, of all its stages.
  struct Memory {
    std::int64_t parameters = 0, gradients = 0, state = 0;
  };
  Memory memory();
  // Not collective. Seconds since the last call. What travels inside blocks (tp, cp, ep) is theirs; communication is what train_step() and
  // step() waited for other stages, for gradients after the last backward, and for numbers of all ranks.
  struct Times {
    double forward = 0, backward = 0, communication = 0, update = 0;
  };
  Times take_times();
  // "<pass>: <what it did>", a line each.
  std::string describe() const;

 private:
  std::unique_ptr<internal::Composed> composed_;
};

// Collective. Throws what check_plan() and the passes throw.
ParallelModel parallelize(const BlockModel& model, const Plan& plan, const Mesh& mesh);

// What block number `block` of a model draws its initial values from: torch::manual_seed(block_seed(…)) before each block makes the same
// model in one process.
std::uint64_t block_seed(std::uint64_t seed, int block);

}  // namespace weft::parallel
