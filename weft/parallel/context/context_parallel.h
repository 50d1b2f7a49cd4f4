// Context parallelism: each rank has a part of every sequence's positions (layout.h) and all of the
// weights. Only attention reads other ranks' positions (parallel/context/attention.h). Layers that
// work position by position need no change.
//
//   const ContextParallel cp(mesh["cp"]);
//   models::Gpt model(options, tp, cp);   // takes whole tokens, the same on all ranks, and
//                                         // divides them
//   model->loss(model->forward(tokens), targets).backward();
//
// Gradients. mean() gives every rank the mean over all ranks' positions, and a gradient that is
// size() times its own share. So the mean of a parameter's gradients over the group is the gradient
// of the whole sequence. Data parallelism may therefore treat ranks of "cp" like ranks of "dp":
// data_parallel(model, mesh.along({"dp", "cp"})), a sharded model over the same group, or
// average_gradients().
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

namespace internal {
class HostRing;
}

// Method by which attention reads the whole sequence.
enum class ContextMethod {
  // Keys and values go around the ranks (Liu, Zaharia, Abbeel, "Ring Attention with Blockwise
  // Transformers", 2023).
  kRing,
  // All-to-alls give each rank some heads of all positions during attention (Jacobs et al.,
  // "DeepSpeed Ulysses", 2023).
  kHeads,
};

// A cheap value to copy into every layer that needs it.
class ContextParallel {
 public:
  // One rank alone, with the whole sequence.
  ContextParallel();
  // Not collective.
  explicit ContextParallel(Group group, ContextMethod method = ContextMethod::kRing);

  int rank() const;
  int size() const;
  ContextMethod method() const { return method_; }
  // Throws Error(kInvalidArgument) for one rank alone, which has no group.
  const Group& group() const;

  // Layout of a sequence of `whole` positions.
  SequenceLayout layout(std::int64_t whole) const { return {whole, size()}; }
  // Layout of the sequence of which this rank has `here` positions. Collective: an all-gather of 8
  // bytes. Throws Error(kInvalidArgument) on all ranks if the lengths are not those of a layout.
  SequenceLayout layout_of_part(std::int64_t here) const;
  // This rank's entries of a whole that all ranks have: tokens, targets, positions. Throws as
  // SequenceLayout::part does.
  at::Tensor part(const at::Tensor& whole, std::int64_t dim) const;
  // Joins all ranks' parts into the whole, without gradient. Collective.
  at::Tensor whole(const at::Tensor& part, std::int64_t dim) const;
  // Mean over all ranks: sum / count, where `sum` is one number per rank and `count` the number of
  // its terms. All ranks get the same bits, in sum's type. Collective: an all-reduce of 16 bytes;
  // backward is local. Throws Error(kInvalidArgument) on all ranks if the total count is 0.
  at::Tensor mean(const at::Tensor& sum, std::int64_t count) const;

  // For attention: what the ranks of one host use to read each other's keys in place. Null where
  // they do not share memory. The first call is collective.
  internal::HostRing* host_ring() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // Null: one rank alone.
  ContextMethod method_ = ContextMethod::kRing;
};

// Replaces every gradient below `root` by its mean over the ranks, for an optimizer without data
// parallelism. A gradient that a rank does not have counts as zero. Collective: an all-reduce of
// each parameter that needs a gradient.
void average_gradients(const torch::nn::Module& root, const ContextParallel& cp);

}  // namespace weft::parallel
