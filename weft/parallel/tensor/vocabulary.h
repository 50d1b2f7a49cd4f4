// What is split over the vocabulary: the embedding, and the cross-entropy of logits that are split the same way.
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
  Sequence sequence = Sequence::kWhole;  // of the output [..., sequence, features]
  double normal = 1;                     // initial values: N(0, normal²); libtorch's own with 1
};

// Rows of a table [vocabulary, features] by number. A rank has the rows [rank, rank + 1) · ceil(vocabulary / ranks), padded with zeros;
// what others have is zero here, and the sum is the row. Bytes: forward an all-reduce of the output (sequence split: a reduce-scatter, and
// backward an all-gather of a part).
class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl>, public SplitModule {
 public:
  EmbeddingImpl(EmbeddingOptions options_, TensorParallel tp);
  void reset() override;
  // ids: int64 [..., sequence], the same on all ranks. Collective. Throws Error(kInvalidArgument) for one outside the vocabulary.
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
  std::int64_t vocabulary = 0;       // 0: as many as there are logits on all ranks; less where the last ones are padding
  double label_smoothing = 0;        // the target is (1 - e) one-hot + e / vocabulary
  std::int64_t ignore_index = -100;  // targets that do not count
  LossReduction reduction = LossReduction::kMean;
};

// -log softmax(logits)[target] as torch's cross_entropy, from logits [..., vocabulary / ranks] that stay where they are; target int64
// [...], the same on all ranks. With n targets a rank hands over n numbers (their largest logit) and 2n or, with label smoothing, 3n (the
// sum of exponentials, the target's logit, the sum of logits), in place of n · vocabulary / ranks; backward is local. float32 and float64;
// bfloat16 and float16 are computed in float32, which the result is in. Collective. Throws Error(kInvalidArgument) for shapes that do not
// fit, a target outside the vocabulary, and the mean over no targets.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const CrossEntropyOptions& options, const TensorParallel& tp);

}  // namespace weft::parallel
