// Losses by name, averaged or summed over the samples: sums are what lets uneven batches over
// several ranks be averaged by sample.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace weft::models {

enum class LossKind {
  // mean over classes of (output - one-hot target)²; a float target of the output's shape is taken
  // as it is
  kMse,
  kNll,           // -output[target]: the output is log-probabilities
  kCrossEntropy,  // nll of log_softmax(output): the output is logits
};

// "mse", "nll", "cross_entropy". Throws Error(kBadConfig) for another name.
LossKind parse_loss(const std::string& name);

struct LossOptions {
  LossKind kind = LossKind::kCrossEntropy;
  // Cross-entropy only: the target is (1 - e) one-hot + e / classes (Szegedy et al., Rethinking the
  // Inception Architecture, 2016, 7).
  double label_smoothing = 0;
};

enum class Reduction { kMean, kSum };

// Over the samples: a scalar with a gradient. output [n, classes], floating; target int64 [n]
// (kMse: or as the output). The sum over no samples is 0, with a gradient of zeros; their mean is
// refused. Throws Error(kInvalidArgument) for shapes that don't fit, or label smoothing outside [0,
// 1) or of another loss.
at::Tensor loss(const at::Tensor& output, const at::Tensor& target, const LossOptions& options,
                Reduction reduction = Reduction::kMean);

}  // namespace weft::models
