// The loss of a GPT's tokens, whether one module or blocks hold the model.
#pragma once

#include "weft/models/gpt.h"

namespace weft::models::internal {

// The mean over the targets of the whole sequence, of which `logits` are this rank's; the same on
// all ranks of tp and cp. Without what experts add. Without rows, in a model of experts: 0, through
// the graph, whose backward the others' tokens need.
inline at::Tensor token_loss(const GptOptions& options, const at::Tensor& logits,
                             const at::Tensor& targets, const parallel::TensorParallel& tp,
                             const parallel::ContextParallel& cp) {
  parallel::CrossEntropyOptions of{.vocabulary = options.vocabulary};
  if (options.experts > 0 && targets.numel() == 0) return logits.sum();
  if (cp.size() > 1) {
    of.reduction = parallel::LossReduction::kSum;
    const at::Tensor mine = cp.part(targets, 1);
    return cp.mean(parallel::cross_entropy(logits, mine, of, tp),
                   mine.ne(of.ignore_index).sum().item<std::int64_t>());
  }
  return parallel::cross_entropy(logits, targets, of, tp);
}

// That loss with what the experts of this rank's positions add to it: over cp their mean by
// positions, the same on all its ranks.
inline at::Tensor with_auxiliary(const at::Tensor& loss, const at::Tensor& auxiliary,
                                 const at::Tensor& targets, const parallel::ContextParallel& cp) {
  if (cp.size() == 1 || targets.numel() == 0) return loss + auxiliary;
  const std::int64_t positions = targets.size(0) * cp.layout(targets.size(1)).length(cp.rank());
  return loss + cp.mean(auxiliary * positions, positions);
}

}  // namespace weft::models::internal
