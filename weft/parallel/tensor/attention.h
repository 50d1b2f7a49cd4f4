// Attention: causal self-attention whose heads are split over ranks (Shoeybi et al. 2019, 3), with
// grouped queries (Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from
// Multi-Head Checkpoints", 2023) and rotary positions (Su et al., "RoFormer", 2021, 3.2.2).
//
//   x ── enter_split ── q, k, v of this rank's heads ── softmax(q k^T / sqrt(d), causal) v
//     ── o_proj (row) ── leave_split ── + bias
//
// Traffic: one enter_split and one leave_split serve the four projections. A step passes the
// activation's bytes once in forward and once in backward (an all-reduce each), or in parts of the
// sequence, as Linear does.
//
// Over ranks of a ContextParallel, each rank has its part of the positions, and all ranks have the
// weights. Only the softmax reads other ranks' data (parallel/context/attention.h has its traffic).
// Without documents, an all-gather of 8 bytes tells the length of the whole sequence.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/tensor/linear.h"

namespace weft::parallel {

// Rotary positions stretched for longer texts, as in Llama 3.1. Rates that turn less than `low`
// times within `original` positions are divided by `factor`. Rates that turn more than `high` times
// stay. Between the two, the share changes linearly.
struct RopeScaling {
  double factor = 1;  // Divisor of the slow rates. 1: no scaling.
  double low = 1, high = 4;
  double original = 8192;
};

struct AttentionOptions {
  std::int64_t width = 1, heads = 1;
  // Heads of keys and values; heads / kv_heads queries share one. 0: as many as heads.
  std::int64_t kv_heads = 0;
  std::int64_t head_width = 0;  // Width of a head. 0: width / heads.
  bool bias = true;
  double dropout = 0;  // Dropout of the attention weights.
  // With dropout: recompute scores, weights and masks, [batch, heads, sequence, sequence] each, in
  // backward instead of keeping them (selective recomputation, Korthikanti et al. 2022, 5). Without
  // dropout libtorch's kernel always recomputes them.
  bool recompute = false;
  // Above 0: rotary positions with this base. The halves of a head rotate, as in Hugging Face's
  // Llama.
  double rope_theta = 0;
  RopeScaling rope_scaling;
  Sequence sequence = Sequence::kWhole;  // Layout of input and output.
  int chunks = 1;                        // Pieces of o_proj, as in LinearOptions::chunks.
  // Initial values of q, k, v and of o_proj, as in LinearOptions::normal.
  double normal = 0, normal_out = 0;
};

// Keys (rotated) and values of the positions so far, which extend() does not compute again. A rank
// has those that its queries use. A copy may be extended by itself: it shares memory until then.
struct AttentionCache {
  at::Tensor keys, values;  // [batch, heads, room for more, head_width]
  std::int64_t length = 0;  // Number of positions.
};

// Linear layers q_proj, k_proj, v_proj (column) and o_proj (row). If kv_heads do not divide by the
// ranks, k_proj and v_proj are whole on every rank. Each rank then computes the heads that its
// queries use, and backward all-reduces their gradients.
class AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  // Throws Error(kInvalidArgument) if heads do not divide by kv_heads or the ranks (naming the
  // nearest), or if the width of a rotating head is odd.
  AttentionImpl(AttentionOptions options_, TensorParallel tp, ContextParallel cp = {});
  void reset() override;
  // x: [batch, sequence, width]. Returns the same shape. A position sees all positions up to
  // itself. With `documents`, int64 [batch, whole sequence], it sees only those of its own
  // document; all ranks pass the same, and numbers need not be in order. With `cp`, x and the
  // result have this rank's part of the positions (ContextParallel::part), while documents are
  // those of the whole. Collective, also in backward.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {});
  // forward() for the positions that follow those in the cache, without gradient. Adds them to the
  // cache. The result is that of forward() over all positions, except for rounding. Collective.
  // Throws Error(kInvalidArgument) for another batch size than the cache's, a split sequence, a
  // sequence over ranks of `cp`, and dropout in training.
  at::Tensor extend(const at::Tensor& x, AttentionCache& cache);

  AttentionOptions options;
  Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};

 private:
  at::Tensor keys_or_values(const Linear& proj, const at::Tensor& x) const;
  at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v,
                    const at::Tensor& documents) const;
  at::Tensor attend_over_ranks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const SequenceLayout& layout, const at::Tensor& documents) const;
  at::Tensor share_keys(const at::Tensor& x) const;
  bool shared_evenly() const;
  at::Tensor rotate(const at::Tensor& x, const SequenceLayout& layout, std::int64_t first = 0);

  TensorParallel tp_;
  ContextParallel cp_;
  bool kv_whole_ = false;   // k_proj and v_proj are not split.
  std::int64_t heads_ = 0;  // Queries of this rank.
  // Keys and values that these queries use.
  std::int64_t kv_first_ = 0, kv_count_ = 0;
  at::Tensor cos_, sin_;  // [positions so far, head_width / 2]
};
TORCH_MODULE(Attention);

}  // namespace weft::parallel
