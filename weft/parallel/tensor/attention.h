// Causal self-attention whose heads are split over ranks (Shoeybi et al. 2019, 3), with grouped queries (Ainslie et al., "GQA: Training
// Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", 2023) and rotary positions (Su et al., "RoFormer", 2021, 3.2.2).
//
//   x ─┬─ enter_split ── q, k, v of my heads ── softmax(q k^T / sqrt(d), causal) v ── o_proj (row) ── leave_split ── + bias
//
// One enter and one leave serve the four projections: a step hands over the activation's bytes once forward and once backward (an
// all-reduce each), or in parts of the sequence, as Linear does.
//
// Over ranks of a ContextParallel each has its part of the positions, all of them the weights; only the softmax looks at other ranks
// (parallel/context/attention.h, which says what travels), and an all-gather of 8 bytes says how long the whole is, where documents don't.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/tensor/linear.h"

namespace weft::parallel {

// Rotary positions stretched for longer texts, as Llama 3.1 has it: rates that turn less than `low` times within `original` positions are
// divided by `factor`, those that turn more than `high` times stay, between them the share goes linearly.
struct RopeScaling {
  double factor = 1;  // 1: none
  double low = 1, high = 4;
  double original = 8192;
};

struct AttentionOptions {
  std::int64_t width = 1, heads = 1;
  std::int64_t kv_heads = 0;    // keys and values: heads / kv_heads queries share one. 0: as many as heads
  std::int64_t head_width = 0;  // 0: width / heads
  bool bias = true;
  double dropout = 0;  // of the attention weights
  // With dropout: scores, weights and masks, [batch, heads, sequence, sequence] each, are computed again in backward in place of kept, as
  // selective recomputation does (Korthikanti et al. 2022, 5). Without dropout libtorch's kernel does so anyway.
  bool recompute = false;
  double rope_theta = 0;  // above 0: rotary positions with this base; the halves of a head rotate, as in Hugging Face's Llama
  RopeScaling rope_scaling;
  Sequence sequence = Sequence::kWhole;  // of input and output
  int chunks = 1;                        // of o_proj: LinearOptions::chunks
  double normal = 0, normal_out = 0;     // initial values of q, k, v and of o_proj: LinearOptions::normal
};

// The keys (rotated) and values of the positions so far: what extend() does not compute again. A rank has those that its queries use.
struct AttentionCache {
  at::Tensor keys, values;  // [batch, heads, room for more, head_width]
  std::int64_t length = 0;  // positions
};

// Linear layers q_proj, k_proj, v_proj (column) and o_proj (row). Where kv_heads do not divide by the ranks, k_proj and v_proj are whole on
// every rank, which computes those heads that its queries use; backward all-reduces their gradients.
class AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  // Throws Error(kInvalidArgument) where heads do not divide by the ranks (naming the nearest) or by kv_heads, or a rotating head's width
  // is odd.
  AttentionImpl(AttentionOptions options_, TensorParallel tp, ContextParallel cp = {});
  void reset() override;
  // [batch, sequence, width] -> the same. A position sees those up to itself, of its own document only where `documents` says which one
  // each belongs to (int64 [batch, whole sequence], the same on all ranks; numbers need not be in order). With `cp`, x and the result have
  // this rank's part of the positions (ContextParallel::part), documents are of the whole all the same. Collective, backward too.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {});
  // forward() of the positions that follow those in the cache, which then has them too: what forward() of all of them gives for these, but
  // for rounding. Without gradient; collective. Throws Error(kInvalidArgument) for another batch than the cache's, a split sequence, and
  // dropout in training.
  at::Tensor extend(const at::Tensor& x, AttentionCache& cache);

  AttentionOptions options;
  Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};

 private:
  at::Tensor keys_or_values(const Linear& proj, const at::Tensor& x) const;
  at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const at::Tensor& documents) const;
  at::Tensor attend_over_ranks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
                               const at::Tensor& documents) const;
  at::Tensor share_keys(const at::Tensor& x) const;
  bool shared_evenly() const;
  at::Tensor rotate(const at::Tensor& x, const SequenceLayout& layout, std::int64_t first = 0);

  TensorParallel tp_;
  ContextParallel cp_;
  bool kv_whole_ = false;                     // k_proj and v_proj are not split
  std::int64_t heads_ = 0;                    // queries of this rank
  std::int64_t kv_first_ = 0, kv_count_ = 0;  // keys and values that they use
  at::Tensor cos_, sin_;                      // [positions so far, head_width / 2]
};
TORCH_MODULE(Attention);

}  // namespace weft::parallel
