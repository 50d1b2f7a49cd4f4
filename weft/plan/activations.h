// Bytes that one transformer layer keeps between its forward and its backward, tensor by tensor
// (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
// sections 4 and 5). Parameters, their gradients and what lives only while a kernel runs are not
// among them. Pure.
//
// With s positions, b samples, h features, a heads, t ranks of tensor parallelism the paper has,
// for 16-bit numbers and dropout:
//
//   sbh (34 + 5as/h)                          one rank
//   sbh (10 + 24/t + 5as/(ht))                tensor parallel
//   sbh/t (34 + 5as/h)                        with sequence parallelism
//   sbh/t 34,  2sbh                           selective (the core of attention alone), full
//                                             recomputation
//
// kPublished gives these. weft::models::Gpt differs in what kGpt names:
//
//   - float32: 4 bytes an element in place of 2;
//   - dropout's masks are float32: 4 bytes in place of 1; without dropout there are none;
//   - attention without dropout, or over ranks of context parallelism, is fused (FlashAttention,
//   Dao et al. 2022; libtorch's
//     _scaled_dot_product_flash_attention_for_cpu): in place of 5as/h it keeps the logarithm of
//     softmax's sums, one number a head and
//     position, and computes weights again in backward: the paper's selective recomputation,
//     without asking;
//   - attention with dropout keeps weights, masks and products of the two: 3 · 4 bytes in place of
//   2 + 1 + 2, and the causal mask;
//   - means and deviations of the norms, which the paper leaves out; RMSNorm, which libtorch
//   composes of operations on the CPU, keeps its
//     input over its root mean square besides, e sbh, and does so under selective recomputation
//     too;
//   - with sequence parallelism the first norm's gathered result is kept whole for q, k and v, the
//   second's for the MLP: 2 e sbh in place
//   of
//     2 e sbh/t and two all-gathers more in backward;
//   - selective goes further than the paper: the norms' results (where the sequence is whole) and
//   the MLP's activation are let go too;
//   - keys and values count for every query that shares them (grouped queries): they are spread
//   before the kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::plan {

// Of the whole layer and sequence.
struct LayerShape {
  std::int64_t batch = 1, sequence = 1, width = 1, heads = 1;
  std::int64_t head_width = 0;  // 0: width / heads
  std::int64_t hidden = 0;      // of the MLP; 0: 4 · width
  bool gated = false;           // SwiGLU in place of one activation
  bool rms = false;             // RMSNorm in place of LayerNorm
};

// What layers and kernels keep.
struct Keeping {
  std::int64_t element = 4, mask = 4;  // bytes
  bool fused = true;                   // attention, where nothing is dropped
  bool details = true;         // the norms' statistics (and RMSNorm's quotient), the causal mask
  bool gathers_again = false;  // with the sequence split, in backward
  bool lets_go = true;         // norms' and activations' results, where selective
};
inline constexpr Keeping kGpt = {};
inline constexpr Keeping kPublished = {.element = 2,
                                       .mask = 1,
                                       .fused = false,
                                       .details = false,
                                       .gathers_again = true,
                                       .lets_go = false};

enum class Kept { kAll, kSelective, kInput };  // no, selective, full recomputation

struct ActivationOptions {
  int tp = 1;
  bool split_sequence = false;  // over tp, between the split layers
  int cp = 1;                   // the sequence over ranks that attend to each other's parts
  bool dropout = false;
  Kept kept = Kept::kAll;
  Keeping keeping = kGpt;
};

struct ActivationTerm {
  std::string what;
  std::int64_t bytes = 0;
};

// Of one rank, in the layer's order. Throws Error(kInvalidArgument) for sizes below 1, and heads,
// hidden or a split sequence that do not divide by tp.
std::vector<ActivationTerm> activation_terms(const LayerShape& layer,
                                             const ActivationOptions& options);
// Their sum. Exact but for a sequence that does not divide by cp, whose longest part counts.
std::int64_t activation_bytes(const LayerShape& layer, const ActivationOptions& options);

}  // namespace weft::plan
