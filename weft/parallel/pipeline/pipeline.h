// Pipeline parallelism: a model cut into stages, each on a rank, through which micro-batches flow.
//
//   Pipeline model(mesh["pp"], 12, [](int i) { return block(Block(i)); },
//                  {.algorithm = Algorithm::kOneForwardOneBackward, .micro_batches = 8,
//                   .loss = [](const Tensors& y, const Tensors& t) { return mse_loss(y[0], t[0]); }});
//   torch::optim::AdamW optim(model.parameters(), 1e-3);          // of the rank's own
//   double loss = model.train_step({x}, {target});                // x is read by the first stage's rank, target by the last one's
//   model.clip_grad_norm(1.0); optim.step(); optim.zero_grad();
//
// The schedules, their sources and what each holds and waits: weft/schedule/pipeline/pipeline.h. The result is that of one process on the
// whole batch, with sums in another order, and has the same bits under every schedule and cut for the same micro-batches.
//
// What travels in a step: for each micro-batch and each border of stages on two ranks, forward the tensors that the stage gives and 512
// bytes that say their shapes (tensors of no elements are not sent), back the gradients of those of them that need one. A step ends with
// a broadcast of 8 bytes (the loss), and an all-reduce of each tied gradient over its ranks. Ranks of one host copy from each other's
// memory when they need it; else messages run beside the computation, by the tags 0x70690000 to 0x70690002 of the group. All waits end by
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

struct PipelineOptions {
  schedule::pipeline::Algorithm algorithm = schedule::pipeline::Algorithm::kOneForwardOneBackward;
  int micro_batches = 1;
  int virtual_stages = 0;  // stages of each rank; 0: as few as the algorithm takes
  int memory = 0;          // as schedule::pipeline::Request
  schedule::pipeline::Costs costs = {};
  // The first block of each stage but the first. Empty: rank 0 times every block on `sample` (one micro-batch) and the slowest stage is
  // made as fast as can be (plan/stages.h); without a sample, stages have equally many blocks, later ones one more where they do not
  // divide.
  std::vector<int> cuts = {};
  Tensors sample = {};  // read on rank 0
  // From the last block's tensors and the targets to a mean over the micro-batch's samples. Called on the last stage's rank.
  std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> loss;
  // Called before and after each action of train_step() on its rank, where given, when what it needs has come: for those who let gradients
  // leave with the last one, add them up themselves, or take times.
  std::function<void(const schedule::pipeline::Action&)> before, after;
};

// The cuts whose slowest stage is as fast as can be (plan/stages.h), by what every block takes on this rank for the forward and backward of
// `sample`, one micro-batch. `make` is asked for each block in turn, and none is kept. Where blocks communicate, all their ranks call it.
// Other ranks may measure other times: one's cuts count. Throws what the blocks throw, and Error(kInvalidArgument) for too few blocks.
std::vector<int> measured_cuts(int num_blocks, int stages, const std::function<Block(int)>& make, const Tensors& sample);

// One thread at a time. Collective: all ranks of the group make it, and call each method that says so, in the same order.
class Pipeline {
 public:
  // `make` gives block i of num_blocks. It is asked for this rank's blocks alone; rank 0 asks for each in turn, once more, where it times
  // them. Initial values must not depend on who asks: seed by the block's number. Tied parameters get the values of the first block that
  // has them. Collective. Throws Error(kInvalidArgument) for cuts that are none, what schedule::pipeline::make() throws, and what Group's
  // operations throw.
  Pipeline(Group group, int num_blocks, const std::function<Block(int)>& make, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;

  // Forward and backward of a batch, cut along the first dimension into micro-batches whose sizes differ by one at most. Gradients are
  // added to grad() of the rank's parameters; gives the mean loss over the batch's samples, on every rank. Inputs are read on the first
  // stage's rank, targets on the last one's, and may be empty elsewhere. Collective.
  // Throws Error(kInvalidArgument) for fewer samples than micro-batches; what the blocks, the loss and Group's operations throw. Whatever
  // is thrown ends the group: ranks of the same host get kAborted at once, others kPeerLost or kTimeout by their deadline. Gradients are
  // then incomplete.
  double train_step(const Tensors& inputs, const Tensors& targets);
  // The same for micro-batches made by the caller, options.micro_batches of them, of any shapes, which may differ (sequences of different
  // length). Each counts by its samples, the first dimension of its first target.
  double train_step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets);

  // Forward only, with modules in evaluation mode and without gradients: the loss, on every rank. Collective; throws as train_step().
  double evaluate(const Tensors& inputs, const Tensors& targets);
  double evaluate(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets);
  // The last block's tensors for the whole batch, on the last stage's rank; empty elsewhere. Collective; throws as train_step().
  Tensors predict(const Tensors& inputs);
  // The same for micro-batches made by the caller, of any shapes: what each gives.
  std::vector<Tensors> predict(const std::vector<Tensors>& inputs);

  // Scales the gradients of all ranks so that their joint norm is at most max_norm, and gives the norm that it was: tied parameters count
  // once. As torch's clip_grad_norm_ on the whole model. Collective (an all-reduce of 8 bytes).
  double clip_grad_norm(double max_norm);

  // This rank's: parameters, by "<block>.<name>" too; stages and the blocks of each.
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
