// Sharded data parallelism (Rajbhandari, Rasley, Ruwase, He: "ZeRO: Memory optimizations toward training trillion parameter models", 2020).
//
//   Sharded model({block("stem", Stem()), block("body", Body()), block("head", Head())}, world, optimizer_spec(AdamWOptions(1e-3), {}));
//   for (auto& batch : loader) {
//     cross_entropy(model.forward(batch.data), batch.target).backward();
//     model.step();
//     model.zero_grad();
//   }
//
// With W ranks and Psi parameters (padded), a rank has and sends in a step:
//
//   stage   a part of                    all of                      elements sent
//     0     nothing (data parallelism)   everything                  2 Psi (W-1)/W: all-reduce
//     1     optimizer state, masters     parameters, gradients       2 Psi (W-1)/W: reduce-scatter, all-gather
//     2     and gradients                parameters                  2 Psi (W-1)/W: the same
//     3     and parameters               the blocks that compute     3 Psi (W-1)/W: all-gather twice, reduce-scatter
//
// Stage 0 is data_parallel() with the interface of this class. The rest is about stages 1 to 3.
//
// Weights. The table is that of Weights::kPrivate. Shared weights are for ranks that read each other's memory. Parameters
// exist once on the host, each rank updates its share of them, and nothing is gathered at any stage. Gradients are summed
// where autograd left them. Where options.reduce gives them another type, a reduce-scatter sums them (Psi (W-1)/W). A rank
// holds the gradients of at most one extra block until its peers reach the same block.
//
// Control traffic: each backward also all-reduces 8 (parameters + 1) bytes (samples, which parameters were used). Clipping adds 8 bytes a
// step, and each pass of gathers 8.
//
// Order. Gathers and reduce-scatters have a group each. Forward passes gather all blocks in ascending order, backward passes in descending
// order, in which gradients leave too, whatever a rank runs. A rank that leaves blocks out or runs them in another order takes part in what
// stands before (and keeps early arrivals until its pass ends); missing gradients count as zero. So nothing hangs, as long as all ranks
// make the same number of forward and backward passes before each step(); skip_batch() makes one without a batch. Ranks whose passes differ
// get kInvalidArgument. Where all ran blocks in ascending order, one unit of gradients travels at a time; else as many as it takes.
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

namespace weft::parallel {

class ParameterCuts;

struct ShardedOptions {
  using Average = DataParallelOptions::Average;
  int stage = 3;
  // Stage 0: how gradients and buffers are combined. `weights` and `average` of this struct count, not those of these options. The rest of
  // this struct is for stages 1 to 3.
  DataParallelOptions data_parallel = {};
  // kAuto at stages 1 to 3: shared where all ranks of the group read each other's memory.
  Weights weights = Weights::kAuto;
  // Hybrid sharding: the ranks that have the same shard as this one in other groups; gradients are averaged over them too. All groups are
  // of one size, and group rank r is in the replicas' group of the other groups' ranks r (a mesh's "fsdp" and "dp").
  std::optional<Group> replicas;
  // What gradients go through between the replicas (compress/spec.h; not "auto"): float32 ones, and average is kByRanks or kSum. Inside the
  // group they travel as they are. SGD's momentum is taken after the codec.
  std::string codec = "none";
  // Parameters whose gradients go as they are all the same: those that other ranks have alike, with codes of their own (norms beside split
  // layers, a weight that another stage has too), which rounding would drive apart.
  std::function<bool(const std::string& parameter)> uncoded;
  // Parameters that `replicas` do not have alike: experts, of which each of them has some (parallel/experts). Their gradients are summed
  // over `replicas` of their own, with whom they are alike (none: over nobody else). Needs average = kSum, since means would be over
  // different numbers of ranks; max_grad_norm must be 0, and grad_norm() is that of what this group has. state() has this group's.
  struct Apart {
    std::function<bool(const std::string& parameter)> which;
    std::optional<Group> replicas;
  };
  std::optional<Apart> apart;
  // The type that modules compute with, and gather: at::kBFloat16 or at::kHalf, of float32 parameters, whose masters stay float32.
  // Floating inputs of blocks are cast to it. Empty: the parameters' own.
  std::optional<at::ScalarType> compute;
  // The type in which gradients travel; empty: that in which autograd makes them.
  std::optional<at::ScalarType> reduce;
  Average average = Average::kBySamples;
  // Blocks gathered ahead while one computes; each takes its memory. 0: nothing overlaps, least memory (shards, a block, its gradients).
  int prefetch = 1;
  // Modules without blocks: parameters travel in units of about this many bytes.
  std::size_t unit_bytes = std::size_t{25} << 20;
  // Rank 0's buffers (running statistics) are everybody's after each step, over replicas too; one broadcast of all of a type. Stage 0 has
  // data_parallel.sync_buffers.
  bool sync_buffers = false;
  // A folder: optimizer state lives in a file there, mapped, which has no name as soon as it is open, so that no end of the process leaves
  // it behind. Empty: in memory.
  std::filesystem::path offload;
  // Parameters that were cut over the same ranks as soon as they were made (parameter_cuts.h). Sharded takes their values from it.
  std::shared_ptr<ParameterCuts> cuts;
};

class Engine;

// One thread at a time, and backward() on the same thread. Each call but describe(), memory(), lr and steps is collective.
class Sharded {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  // Collective: everybody gets rank 0's parameters, each keeps its part. All parameters exist whole on each rank until then (see make()).
  // From now on those of stage 3 have their values only while their block runs; parameters that are the same tensor in several blocks stay
  // tied. kInvalidArgument: parameters that differ between ranks, no trainable one, types other than floating, an option that does not fit.
  Sharded(std::vector<Block> blocks, Group group, OptimizerSpec optimizer, ShardedOptions options = {});
  // The same, whose blocks are made one after the other and, at stages 1 to 3, cut at once: no rank ever holds more than one block and its
  // parts. A block that is tied to an earlier one takes the earlier one's parameter, without reading it.
  static Sharded make(const std::vector<std::function<Block()>>& blocks, Group group, OptimizerSpec optimizer, ShardedOptions options = {});
  // Any module, stages 1 and 2: call the module itself, and set_samples() (or another Average) before backward().
  Sharded(std::shared_ptr<torch::nn::Module> module, Group group, OptimizerSpec optimizer, ShardedOptions options = {});
  ~Sharded();
  Sharded(Sharded&&) noexcept;

  // All blocks one after the other.
  at::Tensor forward(const at::Tensor& input);
  // One block, in any order. The first counts the samples: the first dimension of its first input, where gradients are enabled.
  Tensors run(std::size_t block, const Tensors& inputs);
  void set_samples(double samples);
  // A forward and a backward pass of a rank that has no batch.
  void skip_batch();
  // Takes part in the rest of a forward pass in which this rank has left out blocks and which no backward() follows. Peers wait for it.
  void end_pass();
  // While it lives, gradients stay whole on their ranks and add up; they leave with the first backward() after it.
  using NoSync = parallel::NoSync;
  [[nodiscard]] NoSync no_sync();
  // Gradients that no_sync() has kept leave now, and no pass is made: for those whose backwards of a batch are many (pipelines).
  void send_gradients();
  // For a backward in two parts (pipelines): gathers all parameters, as a backward pass does, and keeps them until let_go(). The second
  // part, which computes gradients of weights alone, runs between the two.
  void hold();
  void let_go();

  // Updates this rank's part from the gradients, each times `scale` (one over the loss's scale), clipped by the spec's max_grad_norm, and
  // returns when everybody may use the weights. Several backward() before it add up, as in torch; at stage 0 all but the last are made in
  // no_sync(). A rank that made no backward pass makes one here. Parameters that no rank used are not updated. Throws what Group's
  // operations throw; weights are then a mixture of two steps.
  void step(double scale = 1);
  // Drops all gradients.
  void zero_grad();
  // The 2-norm of all averaged gradients; not finite where one of them is not. For those who scale losses: zero_grad() instead of step().
  double grad_norm();
  // Until gradients under way have come, if step() has not been called since. For those who take times: what needs them waits by itself.
  void await_gradients();
  // What this rank's shards have of the averaged gradients, flat, by parameter; at stage 0, before step(), equal parts of all. Waits for
  // gradients under way, and makes no other call.
  void each_gradient(const std::function<void(const std::string& name, const at::Tensor& piece)>& take);

  // Not collective: ends the waits of the model's peers with kAborted, for who has failed beside it (in a loss, say) and makes no more
  // calls.
  void abandon() noexcept;
  // Stage 0 with overlap_forward: until the weights are those of the last step().
  void wait_for_weights();
  // Not collective. The seconds that stage 0 has spent since the last call on: reducing and updating; waiting for peers.
  DataParallelBase::Times take_times();

  double lr() const;
  void set_lr(double lr);
  std::int64_t steps() const;

  // Rank 0 of the group gets all; the others get nothing. Parameters by name, in their masters' type; the averaged gradients since
  // zero_grad(), after step() as scaled and clipped, without those that nobody used.
  NamedTensors gradients();
  // Parameters, "<parameter>.exp_avg" and the like, "<parameter>.step", "steps": what another number of ranks, form or stage can load.
  NamedTensors state();
  // What rank 0 of the group gives counts; the others may give nothing (with replicas, rank 0 of each group gives the same). Names or
  // shapes that do not fit: kInvalidArgument on all ranks, nothing changed.
  void load_state(const NamedTensors& state);

  // Where a parameter lies in the whole model, if it is itself a part (tensor parallelism). An empty name: it is left out.
  using Placing = std::function<checkpoint::Rectangle(const std::string& parameter)>;
  // This rank's part of state(), by the same names: views of the model's memory, valid until the next step() or load. At stages 1 to 3 no
  // rank holds more than its part; at stage 0 ranks deal out what all of them have. Not collective. All ranks' slices together are the
  // whole state, once.
  checkpoint::Slices shards(const Placing& placing = nullptr);
  // Takes what any number of ranks, form or stage has given as shards() or state(). Each rank reads its own part only. A slice that is
  // missing or of another shape: kInvalidArgument on all ranks, nothing changed. Errors of reading leave a mixture of values.
  void load_shards(const checkpoint::SliceSource& source, const Placing& placing = nullptr);
  // The parameters alone; the optimizer's state stays.
  void load_weights(const checkpoint::SliceSource& source, const Placing& placing = nullptr);

  // Stage 0: as DataParallelBase's. False: nothing was loaded.
  checkpoint::Slices codec_slices();
  bool load_codec(const checkpoint::Reader& saved);
  // Stages 1 to 3: what the codec remembers on this rank, in place, and exchanges that it has done: for a checkpoint. Each rank's is its
  // own; what other ranks, form or stage have left does not fit. Not collective.
  std::vector<std::span<float>> codec_memory();
  std::int64_t codec_steps() const;
  void set_codec_steps(std::int64_t steps);

  // Bytes on this rank, padding included. In the shared form parameters are this rank's share of the host's.
  struct Memory {
    std::int64_t parameters = 0, gradients = 0, state = 0;
    std::int64_t peak = 0;  // of their sum, since the last call
  };
  Memory memory();
  // "ZeRO-3, private: 12 parameters of 3 blocks in 4 units over 2 ranks".
  std::string describe() const;

 private:
  std::shared_ptr<Engine> model_;
};

// Parameters of one or no dimension, biases and norms mostly: for OptimizerSpec::no_decay.
std::function<bool(const std::string&)> vectors_of(const std::vector<Block>& blocks);
std::function<bool(const std::string&)> vectors_of(const torch::nn::Module& module);

}  // namespace weft::parallel
