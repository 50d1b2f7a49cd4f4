// Batch normalisation (Ioffe, Szegedy 2015) whose mean and variance are those of all ranks' batches together, weighted by their sizes.
//
// A forward in training mode gathers 2 channels + 1 doubles of each rank, a backward sums 2 channels doubles; both happen where the layer
// stands in the graph, so every rank runs the same layers in the same order, a rank without samples too (an input with first dimension 0,
// forward and backward). Evaluation mode does not communicate. Alone or in a group of one it is torch::nn::BatchNorm.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <ostream>

#include "weft/comm/group.h"
#include "weft/engine/data_parallel.h"

namespace weft::parallel {

// Replaces BatchNorm1d, 2d and 3d: input [n, channels], [n, channels, length] up to five dimensions, of any n; the same options, parameter
// and buffer names, so that weights can be exchanged. float32 and float64; float16 and bfloat16 are computed in float32.
//
// What backward() gives. A rank's input reaches every rank's loss through the common statistics, so the gradients of the losses are
// combined here already, and that must be done in the way in which gradients are averaged later:
//   kBySamples (DataParallel's default; each loss is a mean over the local batch): gradients such that their average weighted by n is the
//     gradient of the mean over the joined batch, exactly, for uneven batches too.
//   kByRanks, kSum: the gradients of the sum of all ranks' losses, as in PyTorch's SyncBatchNorm.
// Gradients of weight and bias are this rank's share; DataParallel averages them as all others.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  using Average = DataParallelOptions::Average;

  // Without a group until join().
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_);
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_, Group group, Average average = Average::kBySamples);

  // From now on statistics are taken over `group`.
  void join(Group group, Average average = Average::kBySamples);

  // Collective in training mode. Throws Error(kInvalidArgument) for an input of other shape, and on all ranks where all batches together
  // have fewer than two values a channel; what Group's operations throw. Backward of backward is refused (kInvalidArgument).
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    // undefined unless affine
  at::Tensor running_mean, running_var, num_batches_tracked;  // undefined unless track_running_stats

 private:
  friend int convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>&, const Group&, Average);

  // A layer with the very parameters of a torch::nn::BatchNorm: an optimiser that holds them goes on.
  static std::shared_ptr<SyncBatchNormImpl> in_place_of(const torch::nn::BatchNormOptions& options, const torch::nn::Module& batch_norm);
  // How much of the batch statistics goes into the running ones; counts the batch.
  double next_momentum();
  at::Tensor forward_alone(const at::Tensor& input, bool batch_statistics);

  std::optional<Group> group_;
  Average average_ = Average::kBySamples;
};
TORCH_MODULE(SyncBatchNorm);

// Makes the batch norms below `root` synchronous: SyncBatchNorm layers join `group`, BatchNorm1d, 2d and 3d in a torch::nn::Sequential are
// replaced, keeping parameters, statistics and mode. Gives the number of layers. Not collective; call it before data_parallel().
//
// A BatchNorm that is a typed member (`torch::nn::BatchNorm2d bn1`) cannot be replaced from outside: C++ has no way to reach the member,
// and its forward is not virtual. Where there is one the call throws Error(kInvalidArgument) naming all of them, and changes nothing:
// declare such members as SyncBatchNorm, which without a group is the same layer. (A copy of a Sequential's holder that is kept elsewhere
// goes on as the old layer.)
int convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>& root, const Group& group,
                            DataParallelOptions::Average average = DataParallelOptions::Average::kBySamples);

}  // namespace weft::parallel
