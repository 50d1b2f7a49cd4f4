// Pipeline parallelism: a model is cut into stages, each on a rank, and micro-batches flow through
// them.
//
//   Pipeline model(mesh["pp"], 12, [](int i) { return block(Block(i)); },
//                  {.algorithm = Algorithm::kOneForwardOneBackward, .micro_batches = 8,
//                   .loss = [](const Tensors& y, const Tensors& t) {
//                     return mse_loss(y[0], t[0]);
//                   }});
//   torch::optim::AdamW optim(model.parameters(), 1e-3);  // this rank's parameters
//   double loss = model.train_step({x}, {target});        // first stage reads x, last reads target
//   model.clip_grad_norm(1.0); optim.step(); optim.zero_grad();
//
// weft/schedule/pipeline/pipeline.h has the schedules, their sources, and the memory and idle time
// of each. The result is that of one process on the whole batch, with sums in another order. For
// the same micro-batches, every schedule and every cut gives the same bits.
//
// Traffic of a step, for each micro-batch and each border between stages on two ranks:
// - forward, the tensors that the stage returns and 512 bytes with their shapes (tensors without
//   elements are not sent);
// - backward, the gradients of the tensors that need one.
// At the end of a step: a broadcast of 8 bytes (the loss). For each tied parameter, its ranks then
// all-reduce 4 bytes (whether there is a gradient) and the gradient.
// Ranks of one host copy from each other's memory when they need the data. Other ranks send
// messages beside the computation, with the group's tags 0x70690000 to 0x70690002. All waits end by
// the group's deadline.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/block.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::parallel {

using engine::Block;
using engine::block;
using engine::Tensors;

struct PipelineOptions {
  schedule::pipeline::Algorithm algorithm = schedule::pipeline::Algorithm::kOneForwardOneBackward;
  int micro_batches = 1;
  int virtual_stages = 0;  // Stages of each rank. 0: as few as the algorithm allows.
  int memory = 0;          // Memory limit, as in schedule::pipeline::Request.
  schedule::pipeline::Costs costs = {};
  // First block of each stage except the first stage. Empty: rank 0 times every block on `sample`
  // and makes the slowest stage as fast as possible (plan/mesh/stages.h). Without a sample all
  // stages have the same number of blocks; if that does not divide, later stages have one more.
  std::vector<int> cuts = {};
  Tensors sample = {};  // Inputs of one micro-batch, read on rank 0.
  // Loss of one micro-batch, from the last block's tensors and the targets: a mean over the
  // micro-batch's samples. Called on the last stage's rank.
  std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> loss;
  // Called before and after each action of train_step() on its rank, where given, once the action's
  // inputs have come. For callers that send gradients with the last action, sum them themselves, or
  // measure times.
  std::function<void(const schedule::pipeline::Action&)> before, after;
};

// Returns the cuts whose slowest stage is as fast as possible (plan/mesh/stages.h). It measures
// the forward and backward of every block on this rank for `sample`, one micro-batch. It calls
// `make` for each block in turn, keeps none, and leaves its gradients and buffers as they were. If
// blocks communicate, all their ranks call this. Ranks may measure different times, so use the cuts
// of one rank. Throws what the blocks throw, and Error(kInvalidArgument) for too few blocks.
std::vector<int> measured_cuts(int num_blocks, int stages, const std::function<Block(int)>& make,
                               const Tensors& sample);

// One thread at a time uses it. Collective: all ranks of the group make it and call each method
// marked "Collective" in the same order.
class Pipeline {
 public:
  // `make` returns block i of num_blocks. It is called for this rank's blocks alone; where rank 0
  // times the blocks, it is called once more for each block there. Initial values must not depend
  // on the rank: seed by the block's number. Tied parameters get the values of the first block that
  // has them. Collective. Throws Error(kInvalidArgument) for invalid cuts, and as
  // schedule::pipeline::make() and Group's operations do.
  Pipeline(Group group, int num_blocks, const std::function<Block(int)>& make,
           PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;

  // Runs forward and backward of a batch, cut along the first dimension into micro-batches whose
  // sizes differ by at most one. Adds gradients to grad() of this rank's parameters. Returns the
  // mean loss over the batch's samples, on every rank. Inputs are read on the first stage's rank
  // and targets on the last stage's; they may be empty elsewhere. Collective.
  // Throws Error(kInvalidArgument) for fewer samples than micro-batches, and as the blocks, the
  // loss and Group's operations do. Every exception ends the group: ranks of the same host get
  // kAborted at once, others kPeerLost or kTimeout by their deadline. Gradients are then
  // incomplete.
  double train_step(const Tensors& inputs, const Tensors& targets);
  // As above, for micro-batches made by the caller: options.micro_batches of them, each of any
  // shape (sequences of different lengths). Each is weighted by its samples, the first dimension of
  // its first target.
  double train_step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets);

  // Runs forward only, with modules in evaluation mode and without gradients. Returns the loss on
  // every rank. Collective; throws as train_step().
  double evaluate(const Tensors& inputs, const Tensors& targets);
  double evaluate(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets);
  // Returns the last block's tensors for the whole batch on the last stage's rank, nothing
  // elsewhere. Collective; throws as train_step().
  Tensors predict(const Tensors& inputs);
  // As above, for micro-batches made by the caller, of any shapes. Returns the tensors of each.
  std::vector<Tensors> predict(const std::vector<Tensors>& inputs);

  // Scales the gradients of all ranks so that their joint norm is at most max_norm. Returns the
  // norm before. Tied parameters count once. As torch's clip_grad_norm_ on the whole model.
  // Collective (an all-reduce of 8 bytes).
  double clip_grad_norm(double max_norm);

  // Ends all calls of the group's ranks, for a rank that failed elsewhere. See Group::abort(). Not
  // collective.
  void abort(const Error& why) const;

  // This rank's parameters, each once, also by "<block>.<name>"; the cuts; and this rank's stages.
  std::vector<at::Tensor> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  const std::vector<int>& cuts() const;
  std::vector<int> stages() const;
  bool has_first_stage() const;
  bool has_last_stage() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::parallel
