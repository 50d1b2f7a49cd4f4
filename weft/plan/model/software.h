// Software: how a training framework runs a model: what it fuses, overlaps and keeps. These are
// documented properties of the code of frameworks, not measured constants (calibrated.h has those).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::plan {

// What selective recomputation computes again: attention's core (of compressed attention, its up
// projections), every second product, every second layer, or mixtures of experts.
enum class SelectiveKind { kAttention, kHalfOfMatmuls, kEverySecondLayer, kExperts };
// "attention", "matmuls", "layers", "experts". Throws Error(kInvalidArgument).
SelectiveKind parse_selective(std::string_view name);
// How a model is cut into stages: layers in equal numbers (the embedding with the first, the head
// with the last), by the time of blocks, or by their parameters. kEnds: as kEven, but embedding and
// head count as layers where that makes the numbers equal.
enum class CutRule { kEven, kEnds, kTime, kParameters };
// How tokens reach their experts: by index, or by products with one-hot masks (GShard) over groups
// of positions, in float32 or in the precision of the model.
enum class Dispatch { kIndex, kMaskFloat, kMask };

// CUDA graphs of blocks with experts: the host launches each kernel; those of the experts alone,
// behind graphs of attention and router; none.
enum class Graphs { kNone, kPartial, kFull };
// "none", "partial", "full". Throws Error(kInvalidArgument).
Graphs parse_graphs(std::string_view name);

struct Software {
  std::string name;

  // Kernels.
  bool fused_elementwise = false;  // Bias, GELU, dropout and residual additions share kernels.
  // Passes over the scores of attention for scale, mask and softmax: 2 and 3 if fused.
  double softmax_forward = 7, softmax_backward = 5;
  bool joins_gate = false;     // Gate and up projection of SwiGLU are one product.
  bool fused_rotary = false;   // One kernel; attention reads grouped keys in place.
  bool new_attention = false;  // Attention kernels written for Hopper and Blackwell.
  bool flash = false;          // Fused attention that does not store its scores.
  bool compiled = false;       // Elementwise chains, norms and losses are fused by a compiler.
  bool channels_last = false;  // Convolutions without layout conversions.
  // Rates of its kernels relative to the tuned ones of this model, in 16 and 32 bits, and of its
  // convolutions. Measured on one device (calibrated.h lists the rows).
  double kernel_share = 1, float_share = 1, convolution_share = 1;
  double step_overhead = 2e-3;  // Seconds of the host in each step that nothing hides.
  // Memory traffic of the conversion of an input or a gradient to fp8 or fp4, for each element.
  double cast_bytes = 7;
  bool caches_weights = false;  // Weights are converted once a step, not for each micro-batch.
  Dispatch dispatch = Dispatch::kIndex;
  // Tokens are dispatched to experts over tp x ep ranks, each of which has whole experts.
  bool experts_over_tensor = false;
  bool waits_for_counts = false;  // The host waits for the numbers of tokens of each expert.
  Graphs graphs = Graphs::kPartial;
  bool sends_tokens_once = false;  // To each node, not to each expert (DeepEP, HybridEP).
  bool overlaps_experts = false;   // All-to-alls hide behind another micro-batch's computation.
  double loss_bytes = 40;          // Memory traffic of the loss for each logit, in bytes.
  double loss_kept = 10;  // Memory of the loss for each logit: its inputs, outputs and gradients.
  bool compiles_loss = false;  // The loss is compiled, too: without a float32 copy of the logits.

  // Overlap.
  // Share of the gradients' reduction that runs in buckets during the last backward. 0: it begins
  // after it.
  double overlap = 1;
  bool overlaps_messages = false;  // Pipeline messages travel during computation.
  bool splits_messages = false;    // A stage boundary's message is split over tensor ranks.
  // Share of the gather of updated weights (ZeRO-1 and 2) that runs during the first forward.
  double overlaps_gather = 0;
  bool interleaves = false;   // Pipelines are interleaved unless a scenario says how.
  bool gathers_ahead = true;  // ZeRO-3 gathers the next block while one computes.

  // Memory and optimizer.
  double gradient_bytes = 2;  // Of one gradient, as it is kept and reduced.
  // Gradients exist from the first backward of a step to its end. False: always.
  bool frees_gradients = false;
  // Memory traffic of a parameter after each micro-batch, where kernels of their own add bfloat16
  // gradients to a float32 sum.
  double sum_bytes = 0;
  bool master_weights = true;  // 16-bit weights with a float32 copy in the optimizer.
  double bucket_bytes = 25e6;  // Of gradients that are reduced at once.
  SelectiveKind selective = SelectiveKind::kAttention;
  bool keeps_gathered = false;  // Inputs that sequence parallelism gathers are kept whole.
  // Arrays of positions x hidden that a layer keeps besides those that Korthikanti et al. count:
  // packed copies of q, k and v, rotated q and k, a float32 residual stream.
  double more_kept = 0;
  double scores_kept = 0;        // Further bytes of each score of attention.
  double partition_bytes = 0;    // Of a parameter of a ZeRO shard, beyond the optimizer's state.
  double context_bytes = 0.8e9;  // CUDA context and libraries of a process.
  bool reports_context = false;  // Users of it report the memory of the process.
  double fragmentation = 0.03;   // Share of the activations that the allocator cannot use.

  // Pipelines.
  CutRule cuts = CutRule::kEven;
  // Bytes/s of messages between two ranks on different nodes. 0: the link's. Measured
  // (calibrated.cc).
  double message_rate = 0;
  bool receives_block = false;  // A rank does not compute while it receives a message.
  // Seconds that ranks wait for each other in a collective of tensor parallelism. Measured
  // (calibrated.cc).
  double tensor_wait = 0;
  bool shards_over_context = true;  // ZeRO shards over the ranks of cp, too.
  // Context parallelism sends a rank only the keys that its queries see, and has no threads that
  // communicate while others compute.
  bool sends_seen_keys = false;
  // With pp > 1, ZeRO-3 gathers weights once for each step and keeps whole gradients until its end.
  bool gathers_once_in_pipeline = false;
  bool hides_tensor = false;  // Collectives of tensor parallelism hide behind products (async TP).
  bool operator==(const Software&) const = default;
};

// Software by name: megatron, megatron_deepspeed, deepspeed, alpa, torchtitan, nanotron, torch_ddp,
// tensorflow, mxnet, paddle, oneflow, gpipe, torchgpipe, weft. Throws Error(kInvalidArgument),
// naming the nearest.
Software software(std::string_view name);
std::vector<std::string> known_software();

}  // namespace weft::plan
