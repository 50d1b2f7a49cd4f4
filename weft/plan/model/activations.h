// Bytes that one transformer layer keeps between its forward and its backward, tensor by tensor
// (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
// sections 4 and 5). Parameters, their gradients and temporary buffers of kernels are not counted.
// Pure functions.
//
// For s positions, b samples, h features, a heads and t ranks of tensor parallelism, with 16-bit
// numbers and dropout, the paper has:
//
//   sbh (34 + 5as/h)                one rank
//   sbh (10 + 24/t + 5as/(ht))      tensor parallelism
//   sbh/t (34 + 5as/h)              tensor and sequence parallelism
//   sbh/t 34                        the same, with selective recomputation (core of attention)
//   2sbh                            full recomputation
//
// kPublished gives these numbers. kGpt describes weft::models::Gpt, which differs as follows
// (e: bytes of an element):
//
//   - Numbers are float32: 4 bytes instead of 2.
//   - Dropout masks are float32: 4 bytes instead of 1. Without dropout there are no masks.
//   - Attention is fused if there is no dropout, or with context parallelism (FlashAttention, Dao
//     et al. 2022; libtorch's _scaled_dot_product_flash_attention_for_cpu). Instead of 5as/h it
//     keeps the logarithm of softmax's sums, one number per head and position. Backward computes
//     the weights again, so the paper's selective recomputation is always on.
//   - Attention with dropout keeps weights, masks and their product: 3 · 4 bytes instead of
//     2 + 1 + 2. It also keeps the causal mask.
//   - The norms keep means and deviations, which the paper leaves out. RMSNorm also keeps its input
//     divided by the root mean square (e sbh), even with selective recomputation: libtorch composes
//     it of several operations on the CPU.
//   - With sequence parallelism, the gathered result of the first norm is kept whole for q, k and
//     v, and that of the second norm for the MLP: 2 e sbh. The paper keeps 2 e sbh/t and needs two
//     more all-gathers in backward.
//   - Selective recomputation also drops the results of the norms (if the sequence is not split)
//     and of the MLP's activation.
//   - With grouped queries, keys and values count once for every query head, since they are
//     expanded before the kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::plan {

// Shape of the whole layer and sequence, before they are split over ranks.
struct LayerShape {
  std::int64_t batch = 1, sequence = 1, width = 1, heads = 1;
  std::int64_t head_width = 0;  // Features of a head; 0: width / heads.
  std::int64_t hidden = 0;      // Features of the MLP; 0: 4 · width.
  bool gated = false;           // SwiGLU instead of one activation.
  bool rms = false;             // RMSNorm instead of LayerNorm.
};

// What layers and kernels keep for backward.
struct Keeping {
  std::int64_t element = 4, mask = 4;  // Bytes of a number and of a mask's element.
  bool fused = true;                   // Fused attention, without dropout or with cp > 1.
  bool details = true;                 // Norms' statistics, RMSNorm's quotient, the causal mask.
  bool gathers_again = false;          // Split sequence: gathers again in backward.
  bool lets_go = true;                 // Selective: drops the results of norms and activations.
};
inline constexpr Keeping kGpt = {};
inline constexpr Keeping kPublished = {.element = 2,
                                       .mask = 1,
                                       .fused = false,
                                       .details = false,
                                       .gathers_again = true,
                                       .lets_go = false};

enum class Kept { kAll, kSelective, kInput };  // No, selective, full recomputation.

struct ActivationOptions {
  int tp = 1;
  bool split_sequence = false;  // Sequence parallelism over tp, between the split layers.
  int cp = 1;                   // Context parallelism: number of ranks that share a sequence.
  bool dropout = false;
  Kept kept = Kept::kAll;
  Keeping keeping = kGpt;
};

struct ActivationTerm {
  std::string what;
  std::int64_t bytes = 0;
};

// Terms of one rank, in the order of the layer. Throws Error(kInvalidArgument) for sizes below 1,
// and if heads, hidden or a split sequence are not divisible by tp.
std::vector<ActivationTerm> activation_terms(const LayerShape& layer,
                                             const ActivationOptions& options);
// Sum of the terms. It is exact unless the sequence is not divisible by cp. Then the longest part
// counts.
std::int64_t activation_bytes(const LayerShape& layer, const ActivationOptions& options);

}  // namespace weft::plan
