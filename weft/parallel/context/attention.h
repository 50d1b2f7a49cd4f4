// Attention, forward and backward, over a sequence that is divided over ranks. No rank ever holds
// all scores: softmax is computed block by block, and the blocks are combined by the logarithms of
// their sums (Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022, and libtorch's kernel of it).
//
// Ring: in step s, rank r uses the keys and values of rank r + s (modulo W). Ranks of one host read
// them in place. Others send them to r - 1 meanwhile.
//
//   Causal, 3 ranks: the chunks of keys seen, by the chunks of queries.
//
//            step 0      step 1     step 2
//   rank 0   0 5 (own)   1,4 by 5   2,3 by 5
//   rank 1   1 4 (own)   2,3 by 4   0 by 1,4
//   rank 2   2 3 (own)   0 by 2,3   1 by 2,3
//
// On all ranks, every step costs half of the rank's own block without a mask. Only lower ranks use
// a late chunk, so it is not sent further. Backward repeats the ring with the gradients of the
// keys. The last rank that adds to them sends them back to their owner; in place, owners add each
// rank's part.
//
// Bytes that a rank sends, or reads in place:
//
//   W  number of ranks.
//   T  positions of the whole sequence. 2 W divides it.
//   m  entries of the keys and values of one position: 2 · batch · kv_heads · head_width.
//   e  bytes of an entry.
//   a  bytes of a sum: 4, or 8 for float64 inputs.
//   b  number of the rank that rank r sends to: r - 1 (modulo W). In place, b is r.
//
//   ring, causal   forward  m e (T / 2W) (2 (W - 1) - b); on average 3/4 of what it is without a
//                           mask;
//                  backward the same and, over all ranks, a / e times as much again for gradients
//   ring, not      forward  m e (T / W) (W - 1); backward the same and m a (T / W) (W - 1)
//   heads          forward  batch · head_width · e (T / W) (2 heads + 2 max(kv_heads, W))
//                           (W - 1) / W; backward the same; in two all-to-alls, as long as the
//                           longest part
//
// Memory beyond arguments and result: the ring keeps the keys and values of two ranks (none in
// place), and in backward their gradients. The heads method keeps those of heads / W heads for all
// positions. Documents need a mask [batch, 256, keys of a rank]. Libtorch's kernel does not support
// dropout. Blocks with dropout are computed by matrix products. They need about five arrays of
// weights and masks [batch, heads, 256, keys of a rank], which backward computes again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weft/base/random.h"
#include "weft/parallel/context/context_parallel.h"

namespace weft::parallel {

// Dropout of the softmax weights, the same as in one process: the draw for query i, key j and head
// h of sample b depends on the index of (b, h, i, j) in the whole [batch, heads, whole sequence,
// whole sequence] (base/random.h), on whichever rank they are. All ranks of a sequence pass the
// same values, except for the head.
struct AttentionDropout {
  double p = 0;
  DropoutAddress address = {};
  // Position of q's heads among all heads. 0 heads: q has all of them.
  std::int64_t first_head = 0, heads = 0;
};

struct ContextAttentionOptions {
  bool causal = true;
  double scale = 0;  // of scores; 0: 1 / sqrt(head_width)
  // if given, positions see only their own document: int64 [batch, whole sequence], the same on all
  // ranks
  at::Tensor documents;
  AttentionDropout dropout = {};
};

// softmax(scale q k^T over the visible positions) v, as torch's scaled_dot_product_attention. q is
// [batch, heads, length(rank), head_width]; k and v are the same with kv_heads that divide heads:
// query head h uses key head h / (heads / kv_heads). Types: float32, float64 or bfloat16 (blocks
// and gradients are then summed in float32), on the CPU. The result has q's shape. Gradients of
// gradients are not supported.
//
// Collective, also in backward, and in the same order on all ranks. `layout` has the whole length,
// the same on all ranks. Throws Error(kInvalidArgument) for shapes that do not fit. With kHeads,
// also if heads do not divide by the ranks (naming the nearest), or kv_heads and ranks do not
// divide one another. Throws as Group's operations do.
at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const SequenceLayout& layout, const ContextAttentionOptions& options,
                             const ContextParallel& cp);

}  // namespace weft::parallel
