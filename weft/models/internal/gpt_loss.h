// The loss of a GPT, shared by the module (GptImpl) and the blocks (gpt_blocks).
#pragma once

#include "weft/models/gpt.h"

namespace weft::models::internal {

// Returns the mean cross-entropy over the targets of the whole sequence, the same on all ranks of
// tp and cp; with GptOptions::targets_per_sample, the sum over these terms. `logits` are the rank's
// part. Auxiliary losses of experts are not included. With experts and no rows, the result is 0 but
// still depends on the graph: the rank must run backward, which is collective, for the tokens of
// other ranks.
inline at::Tensor token_loss(const GptOptions& options, const at::Tensor& logits,
                             const at::Tensor& targets, const parallel::TensorParallel& tp,
                             const parallel::ContextParallel& cp) {
  parallel::CrossEntropyOptions of{.vocabulary = options.vocabulary};
  if (options.experts > 0 && targets.numel() == 0) return logits.sum();
  if (cp.size() == 1 && options.targets_per_sample == 0)
    return parallel::cross_entropy(logits, targets, of, tp);
  of.reduction = parallel::LossReduction::kSum;
  const at::Tensor mine = cp.size() > 1 ? cp.part(targets, 1) : targets;
  const at::Tensor sum = parallel::cross_entropy(logits, mine, of, tp);
  if (options.targets_per_sample == 0)
    return cp.mean(sum, mine.ne(of.ignore_index).sum().item<std::int64_t>());
  const at::Tensor all = cp.size() > 1 ? cp.mean(sum, 1) * cp.size() : sum;
  return all / (options.targets_per_sample * static_cast<double>(targets.size(0)));
}

// Returns `loss` plus the auxiliary loss of this rank's positions. Over cp, it adds the mean of all
// ranks' auxiliary losses, weighted by positions, so that the result is the same on all ranks.
inline at::Tensor with_auxiliary(const at::Tensor& loss, const at::Tensor& auxiliary,
                                 const at::Tensor& targets, const parallel::ContextParallel& cp) {
  if (cp.size() == 1 || targets.numel() == 0) return loss + auxiliary;
  const std::int64_t positions = targets.size(0) * cp.layout(targets.size(1)).length(cp.rank());
  return loss + cp.mean(auxiliary * positions, positions);
}

}  // namespace weft::models::internal
