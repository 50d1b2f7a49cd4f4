// Synchronized batch normalization (Ioffe, Szegedy 2015): mean and variance are those of all ranks'
// batches together, weighted by their sizes.
//
// A forward in training mode gathers 2 channels + 1 doubles from each rank; a backward all-reduces
// 2 channels doubles. Both happen where the layer stands in the graph. So every rank runs the same
// layers in the same order, also a rank without samples: forward and backward of an input with
// first dimension 0. Evaluation mode does not communicate. Without a group, or in a group of one,
// it is torch::nn::BatchNorm.
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

// Replaces BatchNorm1d, 2d and 3d. Input: [n, channels], [n, channels, length] and so on, up to
// five dimensions, of any n. Options and the names of parameters and buffers are the same, so
// weights can be exchanged. float32 and float64; float16 and bfloat16 are computed in float32.
//
// Gradients. A rank's input reaches every rank's loss through the common statistics, so backward()
// already combines the gradients of all losses. It must do so in the way in which gradients are
// averaged later:
// - kBySamples (DataParallel's default; each loss is a mean over the local batch): the average of
//   the gradients weighted by n is exactly the gradient of the mean over the joined batch. This
//   also holds for uneven batches. n is the number of rows of this layer's input. DataParallel's
//   samples (set_samples() included) must be proportional to n over the ranks. Otherwise, use
//   kByRanks in both.
// - kByRanks, kSum: the gradients are those of the sum of all ranks' losses, as in PyTorch's
//   SyncBatchNorm.
// Gradients of weight and bias are this rank's share; DataParallel averages them like all others.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  using Average = engine::DataParallelOptions::Average;

  // Has no group until join().
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_);
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_, Group group,
                    Average average = Average::kBySamples);

  // Takes statistics over `group` from now on.
  void join(Group group, Average average = Average::kBySamples);

  // Normalizes `input`. Collective in training mode. Throws Error(kInvalidArgument) for an input of
  // another shape, and on all ranks if all batches together have fewer than two values per channel.
  // Throws as Group's operations do. Backward of backward is not supported (kInvalidArgument).
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;  // Undefined unless affine.
  // Undefined unless track_running_stats.
  at::Tensor running_mean, running_var, num_batches_tracked;

 private:
  friend int convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>&, const Group&,
                                     Average);

  // A layer with the parameter and buffer tensors of a torch::nn::BatchNorm, so an optimizer or a
  // program that holds them stays valid.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                    const torch::nn::Module& batch_norm);
  // Weight of the batch statistics in the running ones. Counts the batch.
  double next_momentum();
  at::Tensor forward_alone(const at::Tensor& input, bool batch_statistics);

  std::optional<Group> group_;
  Average average_ = Average::kBySamples;
};
TORCH_MODULE(SyncBatchNorm);

// Makes the batch norms below `root` synchronous and returns the number of layers. SyncBatchNorm
// layers join `group`. BatchNorm1d, 2d and 3d in a torch::nn::Sequential are replaced and keep
// parameters, statistics and mode. Not collective; call it before data_parallel().
//
// A BatchNorm that is a typed member (`torch::nn::BatchNorm2d bn1`) cannot be replaced from
// outside: C++ cannot reach the member, and its forward is not virtual. If there is one, the call
// throws Error(kInvalidArgument), naming all of them, and changes nothing. Declare such members as
// SyncBatchNorm, which without a group is the same layer. (A copy of a Sequential's holder that is
// kept elsewhere goes on with the old layer.)
int convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>& root, const Group& group,
                            engine::DataParallelOptions::Average average =
                                engine::DataParallelOptions::Average::kBySamples);

}  // namespace weft::parallel
