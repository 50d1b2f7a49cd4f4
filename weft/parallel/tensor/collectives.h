// Collectives with gradients: the gradient of each is its counterpart.
//
// They are f and g of Megatron-LM (Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter
// Language Models Using Model Parallelism", 2019, 3) and those of sequence parallelism (Korthikanti
// et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, 4.2.2).
//
//                      forward                     backward
//   copy_to            -                           all-reduce, whole (f)
//   reduce_from        all-reduce, whole (g)       -
//   scatter_to         this rank's slice           all-gather, slice
//   gather_from        all-gather, slice           this rank's slice
//   all_gather_from    all-gather, slice           reduce-scatter, whole
//   reduce_scatter_to  reduce-scatter, whole       all-gather, slice
//
// "whole" and "slice" name the tensor that a rank passes to the call. With n bytes of the whole and
// W ranks, a ring all-reduce moves 2n (W-1)/W bytes per rank, an all-gather or a reduce-scatter
// half of that.
//
// Use gather_from for a whole that all ranks then use alike: its gradient is the same on all ranks.
// Use all_gather_from for a whole that each rank uses in its own way: gradients are summed.
//
// All are collective, in forward and in backward: every rank of the group runs the same graph. In a
// group of one each returns its argument. `dim` may be negative. Slices are even: sizes that do not
// divide throw Error(kInvalidArgument), naming the nearest that do. Gradients of gradients are
// supported. Throw as Group's operations do.
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

// Layout of activations [..., sequence, features] between the split layers. kWhole: whole on every
// rank. kSplit (sequence parallelism): each rank has its even part of the sequence. Norms, dropout
// and their saved activations then take 1/ranks of the memory, at the same bytes on the wire.
enum class Sequence { kWhole, kSplit };

// Enter and leave a region whose weights are split: copy_to and reduce_from, or all_gather_from and
// reduce_scatter_to along the sequence.
at::Tensor enter_split(const at::Tensor& x, Sequence sequence, const TensorParallel& tp);
at::Tensor leave_split(const at::Tensor& x, Sequence sequence, const TensorParallel& tp);
// Use of a parameter that every rank has whole, on activations of this layout. With kSplit its
// gradient is summed over the ranks, since each sees a part of the sequence.
at::Tensor use_whole(const at::Tensor& parameter, Sequence sequence, const TensorParallel& tp);

}  // namespace weft::parallel
