#include "weft/models/loss.h"

#include <torch/nn/functional.h>
#include <torch/types.h>

#include <limits>
#include <string>

#include "weft/base/error.h"

namespace weft::models {
namespace {

namespace F = torch::nn::functional;

// For torch's ignore_index, whose default -100 would drop samples that the mean counts.
constexpr std::int64_t kNoTarget = std::numeric_limits<std::int64_t>::min();

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor want = target.is_floating_point()
                              ? target
                              : torch::one_hot(target, output.size(1)).to(output.scalar_type());
  WEFT_REQUIRE(want.sizes() == output.sizes(), "loss: output and target differ in shape");
  return (output - want).square().mean(1).sum();
}

}  // namespace

LossKind parse_loss(const std::string& name) {
  if (name == "mse") return LossKind::kMse;
  if (name == "nll") return LossKind::kNll;
  if (name == "cross_entropy") return LossKind::kCrossEntropy;
  throw Error(Errc::kBadConfig, "unknown loss \"" + name + "\"; use mse, nll or cross_entropy");
}

at::Tensor loss(const at::Tensor& output, const at::Tensor& target, const LossOptions& options,
                Reduction reduction) {
  WEFT_REQUIRE(output.dim() == 2 && output.size(1) > 0 && target.dim() >= 1 &&
                   target.size(0) == output.size(0),
               "loss: the output must be [n, classes] and the target must have n rows");
  WEFT_REQUIRE(options.label_smoothing >= 0 && options.label_smoothing < 1,
               "loss: label_smoothing must be in [0, 1)");
  WEFT_REQUIRE(options.label_smoothing == 0 || options.kind == LossKind::kCrossEntropy,
               "loss: label_smoothing is supported by cross_entropy only");
  WEFT_REQUIRE(output.size(0) > 0 || reduction == Reduction::kSum,
               "loss: the mean needs at least one sample");
  const bool of_classes = options.kind != LossKind::kMse && !target.is_floating_point();
  // Kernels of a device check the targets themselves. Looking at them here would wait for the
  // device.
  if (of_classes && target.is_cpu() && target.numel() > 0) {
    const std::int64_t low = target.min().item<std::int64_t>();
    WEFT_REQUIRE(low >= 0, "loss: target " + std::to_string(low) +
                               " is negative; ignored samples are not supported, leave them out");
  }
  const auto sum = torch::kSum;
  at::Tensor total;
  switch (options.kind) {
    case LossKind::kMse: total = squared_error(output, target); break;
    case LossKind::kNll:
      total = F::nll_loss(output, target,
                          F::NLLLossFuncOptions().reduction(sum).ignore_index(kNoTarget));
      break;
    case LossKind::kCrossEntropy:
      total = F::cross_entropy(
          output, target,
          F::CrossEntropyFuncOptions().reduction(sum).ignore_index(kNoTarget).label_smoothing(
              options.label_smoothing));
      break;
  }
  return reduction == Reduction::kSum ? total : total / output.size(0);
}

}  // namespace weft::models
