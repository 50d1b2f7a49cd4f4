// Attention over a sequence that lies over ranks, forward and backward, without any rank ever
// holding all scores: softmax is taken block by block and joined by the logarithms of its sums
// (Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022, and libtorch's kernel of it).
//
// Ring: in step s rank r looks at the keys and values that rank r + s has (modulo W), and hands
// them down to r - 1 meanwhile.
//
//   Causal, 3 ranks: the chunks of keys seen, by the chunks of queries.
//
//            step 0      step 1     step 2
//   rank 0   0 5 (own)   1,4 by 5   2,3 by 5
//   rank 1   1 4 (own)   2,3 by 4   0 by 1,4
//   rank 2   2 3 (own)   0 by 2,3   1 by 2,3
//
// Every step is half of what the rank's own block would be without a mask, on all ranks. A late
// chunk is seen by lower ranks only, and goes no further. Backward repeats the round with the keys'
// gradients, which go home from the last rank that adds to them.
//
// Bytes that a rank sends, with m = 2 · batch · kv_heads · head_width entries for keys and values
// of one position, W ranks, whole sequence T divisible by 2 W, e bytes an entry, a bytes an entry
// of float32, or of float64 for that:
//
//   ring, causal   forward  m e (T / 2W) (2 (W - 1) - b) to rank b = r - 1 (modulo W), on average
//                           3/4 of what it is without a mask;
//                  backward the same and, over all ranks, a / e times as much again for gradients
//   ring, not      forward  m e (T / W) (W - 1); backward the same and m a (T / W) (W - 1)
//   heads          forward  batch · head_width · e (T / W) (2 heads + 2 max(kv_heads, W))
//                           (W - 1) / W; backward the same; in two all-to-alls, as long as the
//                           longest part
//
// Memory beyond arguments and result: the ring keeps two ranks' keys and values (and, backward,
// their gradients); heads, those of heads / W heads for all positions. With documents a mask
// [batch, 256, keys of a rank]; with dropout weights and masks [batch, heads, 256, keys of a rank],
// some five of them, which backward makes again: libtorch's kernel drops nothing, so that blocks
// are products then.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weft/base/random.h"
#include "weft/parallel/context/context_parallel.h"

namespace weft::parallel {

// Of the weights that softmax gives, as in one process: whether query i sees key j in head h of
// sample b is drawn by the number of (b, h, i, j) in the whole [batch, heads, whole sequence, whole
// sequence] (base/random.h), wherever the four are. All ranks of a sequence give the same numbers
// but for the head.
struct AttentionDropout {
  double p = 0;
  DropoutAddress address = {};
  // Where q's heads are among those of the whole; 0 heads: q has them all.
  std::int64_t first_head = 0, heads = 0;
};

struct ContextAttentionOptions {
  bool causal = true;
  double scale = 0;  // of scores; 0: 1 / sqrt(head_width)
  at::Tensor
      // where given, positions see their own document only: int64 [batch, whole sequence], the same
      // on all ranks
      documents;
  AttentionDropout dropout = {};
};

// softmax(scale q k^T, of what a position sees) v, as torch's scaled_dot_product_attention. q
// [batch, heads, length(rank), head_width], k and v the same with kv_heads that divide heads:
// queries h share keys h / (heads / kv_heads). float32, float64 or bfloat16, in which blocks are
// joined and gradients added in float32; on the CPU. The result has q's shape. No gradients of
// gradients.
//
// Collective, backward too, and in one order on all ranks. `layout` has the whole length, the same
// on all ranks. Throws Error(kInvalidArgument) for shapes that do not fit, and by heads where heads
// do not divide by the ranks (naming the nearest), or kv_heads and ranks do not divide one by the
// other; what Group's operations throw.
at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const SequenceLayout& layout, const ContextAttentionOptions& options,
                             const ContextParallel& cp);

}  // namespace weft::parallel
