// Software: how a training framework runs a model: what it fuses, overlaps and keeps. These are
// documented properties of the code of frameworks, not measured constants (calibrated.h has those).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::plan {

enum class SelectiveKind { kAttention, kHalfOfMatmuls, kEverySecondLayer };

struct Software {
  std::string name;

  // Kernels.
  bool fused_elementwise = false;  // Bias, GELU, dropout and residual additions share kernels.
  bool fused_softmax = false;      // Scale, mask and softmax are one kernel.
  bool flash = false;              // Fused attention that does not store its scores.
  bool compiled = false;           // Elementwise chains, norms and losses are fused by a compiler.
  bool channels_last = false;      // Convolutions without layout conversions.
  double loss_bytes = 40;          // Memory traffic of the loss for each logit, in bytes.

  // Overlap.
  bool overlaps_gradients = true;  // Gradients are reduced in buckets during the last backward.
  bool overlaps_messages = false;  // Pipeline messages travel during computation.
  bool splits_messages = false;    // A stage boundary's message is split over tensor ranks.
  bool gathers_ahead = true;       // ZeRO-3 gathers the next block while one computes.

  // Memory and optimizer.
  double gradient_bytes = 2;   // Of one gradient, as it is kept and reduced.
  bool sums_in_float = false;  // Gradients of micro-batches are summed in float32.
  bool master_weights = true;  // 16-bit weights with a float32 copy in the optimizer.
  double bucket_bytes = 25e6;  // Of gradients that are reduced at once.
  SelectiveKind selective = SelectiveKind::kAttention;
  double context_bytes = 0.8e9;  // CUDA context and libraries of a process.
  double fragmentation = 0.03;    // Share of the activations that the allocator cannot use.

  // Pipelines.
  bool cuts_by_cost = false;  // Stages are cut by cost, embedding and head included.
  bool shards_over_context = true;  // ZeRO shards over the ranks of cp, too.
  bool operator==(const Software&) const = default;
};

// Software by name: megatron, megatron_deepspeed, deepspeed, alpa, torchtitan, nanotron, torch_ddp,
// tensorflow, mxnet, paddle, oneflow, gpipe, torchgpipe, weft. Throws Error(kInvalidArgument),
// naming the nearest.
Software software(std::string_view name);
std::vector<std::string> known_software();

}  // namespace weft::plan
