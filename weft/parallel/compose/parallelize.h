// parallelize() composes all forms of parallelism. One training step over any product of dp, fsdp,
// tp, pp, cp and ep equals one process on the joined batch.
//
//   const Mesh mesh(world, {{"pp", 2}, {"dp", 0}, {"tp", 2}});
//   auto model = parallelize(
//       blocks, {.optimizer = optimizer_spec(AdamWOptions(1e-3), {}), .micro_batches = 4}, mesh);
//   double loss = model.train_step({x}, {target});  // in: this replica's share; out: mean of all
//   model.step();
//   model.zero_grad();
//
// parallelize() runs a list of named passes (passes()). Each pass does one thing to the blocks and
// says in a line what it did, if it did something (describe()):
//
//   cut stages ► split sequence ► place experts ► split layers ► join batch norms ► precision ►
//   recompute ► scale loss ► connect stages ► replicate ► shard parameters ► clip
//
// Replicas. A replica is the ranks that share the same samples of the batch. Ranks along dp, fsdp
// and ep are in different replicas; ranks along tp, pp and cp are in the same one.
//
// Traffic of a step
// - Inside layers: tensor parallelism (parallel/tensor), attention over cp (parallel/context) and
//   experts over ep (parallel/experts).
// - Between stages: as Pipeline says.
// - Gradients of each stage once per step, and gathers for each micro-batch: as Sharded says.
// - Control: 16 bytes all-reduced over the replicas (the loss), and 8 more (samples) where
//   gradients are summed, as with ep. 8 bytes over the world where the plan clips or scales.
//   24 bytes over the world for skipped steps, learning rates and loads. Replicas of one host, and
//   ZeRO alone, save these: gradients carry them.
//
// Gradients are averaged over dp, fsdp and cp, by samples. With ep, each rank's loss is first
// weighted by its samples (and by 1 / cp): after backward, the gradient of an expert covers the
// tokens of all its ranks. Gradients are then summed: experts' over dp, fsdp and cp, all others'
// over ep too. Experts are balanced over all of dp, fsdp, cp and ep, the ranks with tokens of their
// own.
// Reproducibility. For the same micro-batches, no bit depends on the schedule, the cuts,
// recomputation, the ZeRO stage or the placement of weights. The exception is a weight that is tied
// within a stage in one plan and over stages in another. With Plan::micro_shards no bit depends on
// replicas, shards or stages either: the result is that of one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
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
// All passes, in their order. A name in Plan::without leaves a pass out.
std::span<const PassInfo> passes();

// A model that parallelize() made. One thread at a time calls it. All ranks of the world make it
// and call its methods in one order, except for methods marked "Not collective". An error on one
// rank ends the groups of all ranks: ranks of its host get kAborted at once, others kPeerLost or
// kTimeout.
class ParallelModel {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  explicit ParallelModel(std::unique_ptr<internal::Composed> composed);
  ~ParallelModel();
  ParallelModel(ParallelModel&&) noexcept;

  // Runs forward and backward over this replica's samples, which all its ranks pass. The first
  // stage's ranks read the inputs, all ranks read their first dimension, and the last stage's ranks
  // read the targets. Returns the mean loss over the samples of all replicas, on every rank.
  // Gradients leave once, after the last micro-batch, and add up until zero_grad(). Each call
  // counts 1 / accumulate. Replicas may differ in samples. A replica with fewer samples than
  // micro-batches, or none, runs the missing ones on made-up rows, without the loss. They do not
  // count. A model with experts runs them on empty batches instead, since experts would count the
  // rows. Inputs and targets may not require gradients. Throws as blocks, loss and Group do.
  double train_step(const Tensors& inputs, const Tensors& targets);
  // As train_step(), without an exchange of the loss: for callers that read it every few steps.
  // Returns this rank's part of the loss, summed over the samples of all replicas. It is one
  // number; with Plan::micro_shards, one for each micro-shard, zero for those of other replicas.
  // The sum over all ranks is the batch's.
  std::vector<double> forward_backward(const Tensors& inputs, const Tensors& targets);
  // Updates the weights from the averaged gradients, clipped over the whole model. Returns false,
  // on all ranks, if a gradient is not finite and the plan skips such steps, or scales the loss;
  // nothing is updated then, and zero_grad() has been called.
  bool step();
  // Compares the gradients of replicas, to find a processor that computes wrongly. Call it before
  // forward_backward() of the same batch. Each replica computes the gradients of the next replica's
  // batch too, with the same weights. step() compares the bits. If they differ, it skips the step,
  // returns false, and computes them again to see which rank is wrong. The bits are equal on
  // processors of one kind with the same number of threads. `seed` seeds libtorch's generator as
  // the given replica does. Costs a forward and a backward. Throws kBadConfig for one replica,
  // several batches a step, micro-shards, experts, synchronized batch norms, or no skip_not_finite.
  void verify(const Tensors& inputs, const Tensors& targets,
              const std::function<void(int replica)>& seed);
  // The values of the model that this rank holds, in place, with their places in the whole model:
  // trained parameters, and floating-point buffers. Several ranks may hold the same values. Write
  // them between two steps only, alike on these ranks; then call take_changes(). Not collective.
  struct Held {
    checkpoint::Slices weights, buffers;
    std::vector<at::Tensor> parameters;  // By weight: the parameter of the module.
  };
  Held held();
  // After a change of held() values. Collective.
  void take_changes();
  // Before it: throws kInvalidArgument if weights were changed that cannot count. Collective.
  void check_changes();
  struct WrongGradient {
    std::vector<int> ranks;  // Ranks of the world. Several: one of them is wrong.
    std::string parameter;   // The first whose gradient was different.
  };
  // Of the last step(), the same on all ranks. Not collective.
  const std::vector<WrongGradient>& wrong_gradients() const;
  // The gradients for which the last step() was skipped, the same on all ranks: by rank of the
  // world, the name in the whole model of its first parameter that was not finite. Empty with loss
  // scaling, and where only the sum over the ranks was not finite. Not collective.
  const std::map<int, std::string>& not_finite() const;
  void zero_grad();
  // With Plan::data_parallel.overlap_forward: waits until the weights are those of the last step().
  // Call it before you read weights by data_ptr() or in another thread. Blocks, evaluate(),
  // predict() and state() wait by themselves. Not collective.
  void wait_for_weights();
  // Returns the loss without gradients, with modules in evaluation mode. Otherwise as train_step().
  double evaluate(const Tensors& inputs, const Tensors& targets);
  // Takes inputs as train_step() does. Returns the last block's outputs on the last stage's ranks,
  // and nothing elsewhere. Over cp the outputs are whole, by BlockModel::join.
  Tensors predict(const Tensors& inputs);
  // 2-norm of the whole model's averaged gradients, without the loss scale. Every rank's part of a
  // split parameter counts; whole and tied parameters count once. After step(): the norm before
  // clipping, where the plan clips, scales or measures noise.
  double grad_norm();

  // For optim::NoiseScale: this rank's part of the means over the replicas of the square norm of a
  // replica's own gradient and of 1 / samples. Sums over the world's ranks are the means.
  struct GradientNoise {
    double squares = 0, inverse_samples = 0;
  };
  // Of the last step(). nullopt without Plan::measure_noise, and with one replica. Not collective.
  std::optional<GradientNoise> gradient_noise() const;

  // Changes the number of train_step() calls before each step(), from 1 to Plan::accumulate. Call
  // it on all ranks, before the first train_step() of a step. Not collective.
  void set_accumulate(int batches);

  // Index of this rank's share of a batch, and the number of shares. The same share on ranks of tp,
  // pp and cp. Not collective.
  int replica() const;
  int replicas() const;
  // All ranks set the same rate. Not collective.
  double lr() const;
  void set_lr(double lr);
  // Number of steps done, without skipped ones; and the loss scale, 1 without loss scaling.
  std::int64_t steps() const;
  double loss_scale() const;

  // State of the whole model, as one process would have it, on rank 0 of the world. Other ranks get
  // nothing; rank 0 holds all of it. Contents: parameters and buffers "<block>.<name>" (or by
  // Block::prefix), "<parameter>.exp_avg" and the like, "<parameter>.step", "steps"; with loss
  // scaling also "loss_scale" and "loss_scale.good_steps".
  NamedTensors state();
  // Loads state() of any plan, by names. Every rank passes the whole and takes its own part. Throws
  // kInvalidArgument on all ranks if a name is missing or has another shape; nothing is changed
  // then. A loss scale is loaded if this plan has one.
  void load_state(const NamedTensors& state);
  // This rank's slices of state(), by the same names, and of the codec's memory: the parts "model",
  // "optimizer", "scaling" and "codec" of a checkpoint. They are views of the model's memory, valid
  // until the next step() or load. Ranks that hold the same values divide them, so all ranks'
  // slices together are the whole, once. No rank holds the whole. Not collective.
  checkpoint::Parts shards();
  // Loads shards() or state() of any plan and any ranks. Each rank reads its own part only. Throws
  // as load_state(); errors of reading leave a mixture of values.
  void load_shards(const checkpoint::SliceSource& source);
  // Loads only the parameters: another model's weights to start from.
  void load_weights(const checkpoint::SliceSource& source);
  // Loads the codec's memory of gradients that were not sent. Returns false on all ranks, and loads
  // nothing, if the checkpoint has none, or that of another codec, mesh or cut. What the codec had
  // not sent is lost then. Throws Error(kCorrupt).
  bool load_codec(const checkpoint::Reader& saved);
  // Stage cuts to which the codec's memory of the checkpoint belongs, for Plan::cuts of a resumed
  // run: cuts by measured times differ from run to run. Empty without it, and of another mesh.
  static std::vector<int> cuts_of(const Mesh& mesh, const checkpoint::Reader& saved);
  // Compares by checksums the weights and optimizer state that several ranks hold: replicas, and
  // whole tensors of tp. They differ only after a fault of memory or of a processor. Ranks that
  // differ from the majority get its values. Returns what differed, alike on all ranks. Costs a
  // read of the state, and about 60 bytes sent for each tensor. Call it between steps. Collective.
  struct Difference {
    std::string tensor;
    std::vector<int> ranks;  // Ranks of the world that differ. Without a majority: all holders.
    bool is_healed = false;  // False: there is no majority.
  };
  std::vector<Difference> compare_replicas();
  // Gives the caller's modules (blocks_of()) all trained values on every rank, until the next
  // step() or load, and after this object's end. Otherwise modules of other stages have no values,
  // nor have weights that ZeRO-3 gathers. The program may change the values, alike on all ranks. It
  // may also load a file into modules without values. Broadcasts each missing value. Collective.
  void gather();
  // Bytes that gather() would allocate on this rank. Not collective.
  std::int64_t gather_bytes() const;
  // In place of gather(): modules without values throw errors ending in `advice`. Not collective.
  void refuse(const std::string& advice);
  // Averaged gradients by used parameter, on rank 0; after step(), as clipped.
  NamedTensors gradients();

  // Load of the experts of this rank's blocks in training since the last call, from all ranks that
  // share the batch, by "<block>.<layer>" (MixtureOfExperts::take_sum). Not collective.
  std::map<std::string, ExpertLoad> take_expert_loads();
  // Elements of all parameters of the whole model; tied ones count once. Collective.
  std::int64_t num_parameters();
  struct Memory {
    std::int64_t parameters = 0, gradients = 0, state = 0;
  };
  Memory memory();  // Bytes of all stages on this rank, as Sharded counts them. Not collective.
  // Seconds since the last call. `communication`: waits of train_step() and step() for stages, for
  // gradients, for numbers of all ranks; 0 on one rank. Not traffic inside blocks. Not collective.
  struct Times {
    double forward = 0, backward = 0, communication = 0, update = 0;
  };
  Times take_times();
  // A line for each pass that did something, or was left out: "<pass>: <what it did>".
  std::string describe() const;
  // Ends the model's groups: calls of the other ranks throw kAborted with `why`. Not collective.
  void abort(const Error& why);

 private:
  std::unique_ptr<internal::Composed> composed_;
};

// Makes a model of `plan`. Drops all gradients. Collective. Throws as check_plan() and passes do.
ParallelModel parallelize(const BlockModel& model, const Plan& plan, const Mesh& mesh);

// Seed of the initial values of block number `block`. Call torch::manual_seed(block_seed(…)) before
// each block to make the same model in one process.
std::uint64_t block_seed(std::uint64_t seed, int block);

}  // namespace weft::parallel
