// Collectives that autograd goes through: each has its counterpart as its gradient. f and g of Megatron-LM (Shoeybi et al., "Megatron-LM:
// Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, 3) and those of sequence parallelism (Korthikanti et
// al., "Reducing Activation Recomputation in Large Transformer Models", 2022, 4.2.2).
//
//                      forward                     backward
//   copy_to            -                           all-reduce, whole (f)
//   reduce_from        all-reduce, whole (g)       -
//   scatter_to         my slice                    all-gather, slice
//   gather_from        all-gather, slice           my slice
//   all_gather_from    all-gather, slice           reduce-scatter, whole
//   reduce_scatter_to  reduce-scatter, whole       all-gather, slice
//
// "whole" and "slice": whose bytes a rank hands to the call. With n bytes of the whole and W ranks an all-reduce moves 2n (W-1)/W bytes a
// rank by ring, an all-gather or a reduce-scatter half of that.
//
// gather_from is for a whole that all ranks go on to use alike (its gradient is the same on all ranks), all_gather_from for one that each
// uses in its own way (gradients are summed).
//
// All are collective, in forward and in backward: every rank of the group runs the same graph. In a group of one each gives its argument
// back. `dim` may be negative. Slices are even: sizes that do not divide throw Error(kInvalidArgument) naming the nearest that do.
// Gradients of gradients go through as well. Throw what Group's operations throw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

at::Tensor copy_to(const at::Tensor& x, const TensorParallel& tp);
at::Tensor reduce_from(const at::Tensor& x, const TensorParallel& tp);
at::Tensor scatter_to(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp);
at::Tensor gather_from(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp);
at::Tensor all_gather_from(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp);
at::Tensor reduce_scatter_to(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp);

// How activations [..., sequence, features] lie between the split layers: whole on every rank, or each rank has its even part of the
// sequence (sequence parallelism: norms, dropout and what backward keeps of them take 1/ranks of the memory, at the same bytes on the
// wire).
enum class Sequence { kWhole, kSplit };

// Into a region whose weights are split, and out of it: copy_to and reduce_from, or all_gather_from and reduce_scatter_to along the
// sequence.
at::Tensor enter_split(const at::Tensor& x, Sequence sequence, const TensorParallel& tp);
at::Tensor leave_split(const at::Tensor& x, Sequence sequence, const TensorParallel& tp);
// A parameter that every rank has whole, used on activations that lie so: its gradient is summed where each rank sees a part of the
// sequence.
at::Tensor use_whole(const at::Tensor& parameter, Sequence sequence, const TensorParallel& tp);

}  // namespace weft::parallel
