// Losses by name, averaged or summed over the samples. Sums allow a mean over all samples if ranks
// have batches of different sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace weft::models {

enum class LossKind {
  // Mean over classes of (output - one-hot target)². A floating-point target has the output's shape
  // and replaces the one-hot target.
  kMse,
  kNll,           // -output[target]. The output is log-probabilities.
  kCrossEntropy,  // NLL of log_softmax(output). The output is logits.
};

// "mse", "nll", "cross_entropy". Throws Error(kBadConfig) for another name.
LossKind parse_loss(const std::string& name);

struct LossOptions {
  LossKind kind = LossKind::kCrossEntropy;
  // e in the target (1 - e) one-hot + e / classes (Szegedy et al., Rethinking the Inception
  // Architecture, 2016, 7). Cross-entropy only.
  double label_smoothing = 0;
};

enum class Reduction { kMean, kSum };

// Returns the loss of all samples, a scalar with a gradient. output: floating-point [n, classes].
// target: int64 [n], or for kMse also floating-point [n, classes]. The sum over no samples is 0,
// with a gradient of zeros. Throws Error(kInvalidArgument) for shapes that do not fit, for negative
// targets on the CPU (torch's ignore_index is not supported), for the mean of no samples, for label
// smoothing outside [0, 1), and for label smoothing with another loss than cross-entropy.
at::Tensor loss(const at::Tensor& output, const at::Tensor& target, const LossOptions& options,
                Reduction reduction = Reduction::kMean);

}  // namespace weft::models
