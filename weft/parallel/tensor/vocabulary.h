// Embedding and cross-entropy split over the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>

#include "weft/parallel/tensor/collectives.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

struct EmbeddingOptions {
  std::int64_t vocabulary = 1, features = 1;
  Sequence sequence = Sequence::kWhole;  // Layout of the output [..., sequence, features].
  double normal = 1;                     // Initial values N(0, normal²). 1: libtorch's own.
};

// A table [vocabulary, features] whose rows are looked up by number. A rank has rows [rank, rank +
// 1) · ceil(vocabulary / ranks), padded with zeros. Rows of other ranks count as zero, and the sum
// over ranks is the row.
// Traffic: an all-reduce of the output in forward. With the sequence split: a reduce-scatter in
// forward, an all-gather of a part in backward.
class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl>, public SplitModule {
 public:
  EmbeddingImpl(EmbeddingOptions options_, TensorParallel tp);
  void reset() override;
  // ids: int64 [..., sequence], the same on all ranks. Collective. Throws Error(kInvalidArgument)
  // for an id outside the vocabulary.
  at::Tensor forward(const at::Tensor& ids);
  std::map<std::string, Slice> slices() const override;

  EmbeddingOptions options;
  at::Tensor weight;

 private:
  TensorParallel tp_;
};
TORCH_MODULE(Embedding);

enum class LossReduction { kMean, kSum, kNone };

struct CrossEntropyOptions {
  // Size of the vocabulary; smaller than the number of logits where the last ones are padding. 0:
  // as many as there are logits on all ranks.
  std::int64_t vocabulary = 0;
  // Label smoothing e: the target is (1 - e) one-hot + e / vocabulary.
  double label_smoothing = 0;
  std::int64_t ignore_index = -100;  // Target value that does not count.
  LossReduction reduction = LossReduction::kMean;
};

// Returns -log softmax(logits)[target], as torch's cross_entropy. logits: [..., vocabulary /
// ranks], which stay where they are. target: int64 [...], the same on all ranks. float32 and
// float64. bfloat16 and float16 are computed in float32, which is also the type of the result.
// Traffic of a rank with n targets: n numbers (the largest logits), then 2n numbers (sums of
// exponentials, the targets' logits). With label smoothing, 3n (also sums of logits) instead of 2n.
// Logits themselves would be n · vocabulary / ranks numbers. Backward is local.
// Collective. Throws Error(kInvalidArgument) for shapes that do not fit, a target outside the
// vocabulary, and the mean over no targets. On a device, targets are not looked at, so that nothing
// waits for it: its kernels end the process for a target outside, and the mean over none is NaN.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const CrossEntropyOptions& options, const TensorParallel& tp);

}  // namespace weft::parallel
