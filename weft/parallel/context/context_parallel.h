// One sequence over the ranks of a group: each has its part of the positions (layout.h) and all of the weights. Attention alone looks at
// other ranks' positions (attention.h); what works position by position needs nothing.
//
//   const ContextParallel cp(mesh["cp"]);
//   models::Gpt model(options, tp, cp);             // takes whole tokens, the same on all ranks, and cuts them
//   model->loss(model->forward(tokens), targets).backward();
//
// Gradients. mean() gives every rank the mean over all ranks' positions, and a gradient that is size() times its own share of it: the mean
// of a parameter's gradients over the group is that of the whole sequence. So ranks of "cp" are to data parallelism what ranks of "dp"
// are: data_parallel(model, mesh.along({"dp", "cp"})), a sharded model over the same group, or average_gradients().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "weft/comm/group.h"
#include "weft/parallel/context/layout.h"

namespace torch::nn {
class Module;
}

namespace weft::parallel {

// How attention sees the whole sequence.
enum class ContextMethod {
  kRing,   // keys and values go round (Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", 2023)
  kHeads,  // each rank has some heads of all positions meanwhile (Jacobs et al., "DeepSpeed Ulysses", 2023)
};

// A cheap value, copied into every layer that needs it.
class ContextParallel {
 public:
  // Alone: the whole sequence is here.
  ContextParallel();
  // Not collective.
  explicit ContextParallel(Group group, ContextMethod method = ContextMethod::kRing);

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  ContextMethod method() const { return method_; }
  // Throws Error(kInvalidArgument) where there is none (alone).
  const Group& group() const;

  // Of a sequence of that many positions.
  SequenceLayout layout(std::int64_t whole) const { return {whole, size()}; }
  // Of the sequence of which this rank has `here` positions. Collective: an all-gather of 8 bytes. Throws Error(kInvalidArgument) on all
  // ranks where the lengths are not those of a layout.
  SequenceLayout layout_of_part(std::int64_t here) const;
  // This rank's entries of a whole that all ranks have: tokens, targets, positions. Throws as SequenceLayout::part does.
  at::Tensor part(const at::Tensor& whole, std::int64_t dim) const;
  // The whole of all ranks' parts. Collective. Without gradient.
  at::Tensor whole(const at::Tensor& part, std::int64_t dim) const;
  // sum / count over all ranks, of one number and of how many it is the sum of on this rank: the same bits on all ranks, in sum's type.
  // Collective: an all-reduce of 16 bytes; backward is local. Throws Error(kInvalidArgument) on all ranks where nothing counts.
  at::Tensor mean(const at::Tensor& sum, std::int64_t count) const;

 private:
  std::shared_ptr<const Group> group_;  // null: alone
  ContextMethod method_ = ContextMethod::kRing;
};

// Every gradient below `root` becomes its mean over the ranks, for an optimiser without data parallelism. Collective: an all-reduce of each
// parameter that needs a gradient; what a rank did not use counts as zero.
void average_gradients(const torch::nn::Module& root, const ContextParallel& cp);

}  // namespace weft::parallel
