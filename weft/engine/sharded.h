// Sharded data parallelism (ZeRO): optimizer state, gradients and parameters are divided over the
// ranks of a group (Rajbhandari, Rasley, Ruwase, He: "ZeRO: Memory optimizations toward training
// trillion parameter models", 2020).
//
//   Sharded model({block("stem", Stem()), block("body", Body()), block("head", Head())}, world,
//                 optimizer_spec(AdamWOptions(1e-3), {}));
//   for (auto& batch : loader) {
//     cross_entropy(model.forward(batch.data), batch.target).backward();
//     model.step();
//     model.zero_grad();
//   }
//
// Memory and traffic of a rank in one step, for W ranks and Psi parameters (padded):
//   stage   sharded                      whole                       elements sent
//     0     nothing (data parallelism)   everything                  2 Psi (W-1)/W: all-reduce
//     1     optimizer state, masters     parameters, gradients       2 Psi (W-1)/W: (1)
//     2     and gradients                parameters                  2 Psi (W-1)/W: (1)
//     3     and parameters               the blocks that compute     3 Psi (W-1)/W: (2)
//
// (1) reduce-scatter and all-gather; (2) two all-gathers and a reduce-scatter.
// Stage 0 is data_parallel() with the interface of this class. The rest is about stages 1 to 3.
//
// Weights. The table holds for Weights::kPrivate. Shared weights are for ranks that read each
// other's memory. Parameters then exist once on the host, each rank updates its share of them, and
// nothing is gathered at any stage. Gradients are summed where autograd left them. If
// options.reduce gives them another type, a reduce-scatter sums them (Psi (W-1)/W). A rank holds
// the gradients of at most one extra block until its peers reach the same block.
// Control traffic. Each backward also all-reduces 8 (P + 4) bytes: samples, use of each of P
// parameters, changes of the module. Clipping adds 8 bytes per step, each pass of gathers 8.
// Private weights of stages 1 and 2 add 16 bytes in steps 16, 128 and each 1024th: a checksum.
//
// Order. Gathers and reduce-scatters have a group each. Forward passes gather all blocks in
// ascending order. Backward passes gather them in descending order, and gradients leave in that
// order too. A rank that skips blocks or runs them in another order still takes part in every
// transfer that comes before its own. It keeps blocks that arrived early until its pass ends.
// Missing gradients count as zero. Nothing hangs if all ranks make the same number of forward and
// backward passes before each step(); skip_batch() makes one of each without a batch. Ranks whose
// passes differ get kInvalidArgument. If all ranks ran blocks in ascending order, one unit of
// gradients travels at a time; otherwise as many as needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/engine/block.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/optimizer.h"

namespace weft::checkpoint {
class Reader;
}

namespace weft::engine {

class GradientCheck;
class ParameterCuts;

struct ShardedOptions {
  using Average = DataParallelOptions::Average;
  int stage = 3;
  // Combination of gradients and buffers at stage 0. `weights` and `average` of ShardedOptions
  // replace those of this field. All other options are for stages 1 to 3.
  DataParallelOptions data_parallel = {};
  // kAuto at stages 1 to 3: shared if all ranks of the group read each other's memory.
  Weights weights = Weights::kAuto;
  // Hybrid sharding: the ranks of other groups that have the same shard as this rank. Gradients are
  // averaged over them too. All groups have one size; group rank r is in the replicas' group of the
  // other groups' ranks r (a mesh's "fsdp" and "dp").
  std::optional<Group> replicas;
  // Codec for gradients between the replicas (compress/spec.h; not "auto"). It takes float32
  // gradients, and average = kByRanks or kSum. Gradients inside the group are not compressed. SGD's
  // momentum is applied after the codec.
  std::string codec = "none";
  // Parameters whose gradients skip the codec. Needed for parameters that other ranks have alike
  // but encode separately (norms beside split layers, a weight that another stage has too):
  // rounding would make them diverge.
  std::function<bool(const std::string& parameter)> uncoded;
  // Parameters that differ between `replicas`, such as experts (parallel/experts). Their gradients
  // are summed over the `replicas` of this struct, which have the same parameters; none: not
  // summed. Needs average = kSum, since means would be over different numbers of ranks, and
  // max_grad_norm = 0. grad_norm() and state() then cover what this group has.
  struct Apart {
    std::function<bool(const std::string& parameter)> which;
    std::optional<Group> replicas;
  };
  std::optional<Apart> apart;
  // Type in which modules compute and gather: at::kBFloat16 or at::kHalf. Parameters are float32,
  // and so are the masters. Floating inputs of blocks are cast to it. Empty: the parameters' type.
  std::optional<at::ScalarType> compute;
  // Type in which gradients travel. Empty: the type in which autograd makes them.
  std::optional<at::ScalarType> reduce;
  Average average = Average::kBySamples;
  // Blocks to gather ahead while one computes. Each takes its memory. 0: no overlap, least memory.
  int prefetch = 1;
  // Approximate bytes of parameters per unit of transfer, for modules without blocks.
  std::size_t unit_bytes = std::size_t{25} << 20;
  // Copy rank 0's buffers (running statistics) to all ranks and replicas after each step, in one
  // broadcast per type. Stage 0 uses data_parallel.sync_buffers.
  bool sync_buffers = false;
  // Looks at each gradient before it leaves its rank (gradient_check.h). Null: none.
  std::shared_ptr<GradientCheck> check;
  // Folder for optimizer state in a mapped, unnamed file. Empty: state stays in memory.
  std::filesystem::path offload;
  // Parameters cut over the same ranks when made (parameter_cuts.h). Sharded takes their values.
  std::shared_ptr<ParameterCuts> cuts;
  // For rules that need whole tensors, also at stage 0.
  WholeTensors whole_tensors;
};

class Engine;

// A model whose training state is sharded. One thread at a time calls it, and backward() runs on
// the same thread. Calls are collective, except describe(), memory(), lr(), set_lr(), steps() and
// those marked "Not collective".
class Sharded {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  // Copies rank 0's parameters to all ranks; each rank keeps its part, and until then holds all of
  // them (see make()). Parameters of stage 3 have their values only while their block runs.
  // Parameters that are one tensor in several blocks stay tied. Throws kInvalidArgument if they
  // differ between ranks, none is trainable, one is not floating, or an option is invalid.
  Sharded(std::vector<Block> blocks, Group group, OptimizerSpec optimizer,
          ShardedOptions options = {});
  // As above, but makes the blocks one after the other and, at stages 1 to 3, cuts each at once. No
  // rank ever holds more than one whole block and its parts. A block tied to an earlier one takes
  // the earlier block's parameter without reading it.
  static Sharded make(const std::vector<std::function<Block()>>& blocks, Group group,
                      OptimizerSpec optimizer, ShardedOptions options = {});
  // Takes any module, at stages 1 and 2. Call the module itself, and set_samples() (or use another
  // Average) before backward().
  Sharded(std::shared_ptr<torch::nn::Module> module, Group group, OptimizerSpec optimizer,
          ShardedOptions options = {});
  ~Sharded();
  Sharded(Sharded&&) noexcept;

  // Runs all blocks, one after the other.
  at::Tensor forward(const at::Tensor& input);
  // Runs one block; any order is allowed. With gradients enabled, block 0 counts the first
  // dimension of its first input as samples.
  Tensors run(std::size_t block, const Tensors& inputs);
  void set_samples(double samples);
  // Makes a forward and a backward pass on a rank that has no batch.
  void skip_batch();
  // For a rank that left out blocks and calls no backward(): takes part in the rest of the pass.
  void end_pass();
  // Gradient accumulation: while it lives, gradients stay whole on their ranks and add up. They
  // leave with the first backward() after it.
  using NoSync = engine::NoSync;
  [[nodiscard]] NoSync no_sync();
  // Sends gradients that no_sync() kept, without a pass: for many backwards a batch (pipelines).
  void send_gradients();
  // Keeps all parameters gathered until reshard(): for gradients of weights alone (pipelines).
  void unshard();
  void reshard();

  // Updates this rank's part from the gradients times `scale` (one over the loss scale), clipped by
  // the spec's max_grad_norm. Returns when all ranks may use the weights. Several backward() before
  // it add up, as in torch; at stage 0 all but the last need no_sync(). A rank that made no
  // backward pass makes one here. Parameters that no rank used are not updated. Throws as Group's
  // operations do; weights are then a mixture of two steps.
  void step(double scale = 1);
  // Drops all gradients.
  void zero_grad();
  // 2-norm of all averaged gradients; not finite if one is not: then call zero_grad(), not step().
  double grad_norm();
  // With options.check, before step() or zero_grad(): whether the gradients of this step are
  // finite, on this rank, and on all ranks of the group and its replicas if `on_all`.
  struct Finite {
    bool is = true, on_all = false;
  };
  Finite are_finite();
  // Waits for gradients under way, unless step() was called since. For timing only.
  void await_gradients();
  // Passes this rank's shard of the averaged gradients to `take`, flat, by parameter; at stage 0,
  // before step(), equal parts of all. Waits for gradients under way; `take` may not wait.
  void each_gradient(
      const std::function<void(const std::string& name, const at::Tensor& piece)>& take);

  // Ends the waits of the model's peers with kAborted. For a rank that failed elsewhere (in a loss,
  // say) and makes no more calls. `why` is in their errors. Not collective.
  void abandon(const std::string& why) noexcept;
  // Stage 0 with overlap_forward: waits until the weights are those of the last step().
  void wait_for_weights();
  // Seconds of stage 0 since the last call: to reduce and update, and of waits. Not collective.
  DataParallelBase::Times take_times();
  double lr() const;
  void set_lr(double lr);
  std::int64_t steps() const;
  // Averaged gradients since zero_grad(), by parameter, in the master weights' type; after step(),
  // as scaled and clipped. Without unused parameters. Rank 0 gets all; others get nothing.
  NamedTensors gradients();
  // Parameters, "<parameter>.exp_avg" and the like, "<parameter>.step", "steps". Any number of
  // ranks, placement and stage can load it. Rank 0 of the group gets all; others get nothing.
  NamedTensors state();
  // Loads rank 0's `state`; with replicas, rank 0 of each group passes the same. Throws
  // kInvalidArgument on all ranks if names or shapes do not fit; nothing is changed then.
  void load_state(const NamedTensors& state);

  // Position of a parameter in the whole model, if it is a part itself (tensor parallelism). An
  // empty name leaves it out.
  using Placing = std::function<checkpoint::Rectangle(const std::string& parameter)>;
  // This rank's part of state(), by the same names: views of the model's memory, valid until the
  // next step() or load. All ranks' slices together are the whole state, once. Not collective.
  checkpoint::Slices shards(const Placing& placing = nullptr);
  // As shards(), but all that this rank holds: values of several ranks are in each one's slices.
  checkpoint::Slices held(const Placing& placing = nullptr);
  // Call it after a change of held() values by operations on their tensors. Collective.
  void take_changes();
  // Throws kInvalidArgument if values were changed that cannot count, as on one rank. Collective.
  void check_changes();
  // Loads what any number of ranks, placement and stage returned from shards() or state(). Each
  // rank reads its own part only. Throws kInvalidArgument on all ranks if a slice is missing or has
  // another shape; nothing is changed then. Errors of reading leave a mixture of values.
  void load_shards(const checkpoint::SliceSource& source, const Placing& placing = nullptr);
  // As load_shards(), for the parameters alone; the optimizer state stays.
  void load_weights(const checkpoint::SliceSource& source, const Placing& placing = nullptr);
  // Stage 0: as in DataParallelBase. load_codec() returns false if nothing was loaded.
  checkpoint::Slices codec_slices();
  bool load_codec(const checkpoint::Reader& saved);
  // Stages 1 to 3, for a checkpoint: the codec's memory on this rank, in place, and its exchanges
  // so far. Memory of other ranks, placement or stage does not fit. Not collective.
  std::vector<std::span<float>> codec_memory();
  std::int64_t codec_steps() const;
  void set_codec_steps(std::int64_t steps);
  // Bytes on this rank with padding. Shared parameters count as this rank's share of the host's.
  struct Memory {
    std::int64_t parameters = 0, gradients = 0, state = 0;
    std::int64_t peak = 0;  // Peak of their sum since the last call.
  };
  Memory memory();
  // One line: "ZeRO-3, private: 12 parameters of 3 blocks in 4 units over 2 ranks".
  std::string describe() const;

 private:
  std::shared_ptr<Engine> model_;
};

}  // namespace weft::engine
