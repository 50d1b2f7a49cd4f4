// The blocks of a model as lists of operators: what one rank computes, sends and keeps for one
// micro-batch. Pure functions of (model, split).
//
// A block is the smallest part that a pipeline stage or a sharded layer can consist of: the
// embedding, one transformer block, the output layer with the loss; one residual block of a ResNet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/plan/model/model.h"
#include "weft/plan/model/software.h"

namespace weft::plan {

enum class Precision : std::uint8_t { kFp32, kTf32, kFp16, kBf16, kFp8, kFp4 };
const char* to_string(Precision precision);
// "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "amp", "mixed", "float16" … Throws
// Error(kInvalidArgument).
Precision parse_precision(std::string_view name);
// Bytes of an activation: 4 for kFp32 and kTf32, else 2 (fp8 and fp4 are used inside matrix
// products only).
double element_bytes(Precision precision);

enum class OperatorKind : std::uint8_t {
  kMatmul,       // batch products of m x k by k x n.
  kConvolution,  // The same, as an implicit matrix product.
  kAttention,    // Fused attention: `batch` heads, m queries, n keys, k features.
  kMemory,       // Bound by memory traffic: norms, activations, softmax, losses.
  kMeasured      // A whole block whose times were measured (profile.h).
};

struct Operator {
  OperatorKind kind = OperatorKind::kMatmul;
  std::string name;
  std::int64_t m = 1, n = 1, k = 1, batch = 1;
  int parts = 1;  // kAttention: ranks that share the sequence.
  // kConvolution: elements of the input, the weights and the output.
  double input = 0, weights = 0, output = 0;
  bool winograd = false;           // A 3x3 convolution of stride 1.
  bool has_weights = true;         // False: both operands are activations (attention).
  bool no_input_gradient = false;  // First layer: the input needs no gradient.
  bool low_precision = true;       // False: runs in 16 bits although the precision is fp8 or fp4.
  bool in_float = false;           // Runs in float32 whatever the precision is.
  bool frozen = false;             // Its weights need no gradient.
  // kMemory: bytes read and written, and number of kernels.
  double forward_bytes = 0, backward_bytes = 0;
  int forward_kernels = 1, backward_kernels = 1;
  bool again = false;  // Selective recomputation runs it again in backward.
  // kMeasured.
  double forward_seconds = 0, backward_seconds = 0, measured_flops = 0;
};

// Floating-point operations of the operator's forward. Backward has twice as many (once, if the
// input needs no gradient).
double forward_flops(const Operator& op);

enum class SplitAxis : std::uint8_t { kTensor, kContext, kExpert };
enum class ExchangeKind : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kRing };

// A collective among the ranks of an axis, inside a block. `bytes` is the payload: the array that
// is reduced, the whole gathered array, all blocks of an all-to-all, or all keys and values of a
// ring.
struct Exchange {
  SplitAxis axis = SplitAxis::kTensor;
  ExchangeKind kind = ExchangeKind::kAllReduce;
  double bytes = 0;
  int forward = 0, backward = 0;  // How often in a forward and in a backward.
  int again = 0;                  // How often when full recomputation runs the forward again.
  int selective = 0;              // How often when selective recomputation runs a part of it again.
  // Share of the block's computation behind which it can hide (0: fully exposed).
  double hidden_behind = 0;
  double sent = 1;  // Share of the bytes that a rank sends, in the mean over the ranks.
  // kAllToAll: copies of a token in the payload, of which each node is sent one. 0: all are sent.
  double copies = 0;
};

struct ModelBlock {
  std::string name;
  double parameters = 0;         // Of this rank, without experts.
  double expert_parameters = 0;  // Of this rank: divided over tp and ep.
  bool recomputes = true;        // Recomputation applies: not to the embedding and the head.
  bool is_layer = true;          // Counts as a layer where layers are divided evenly.
  bool tied_to_first = false;    // Its matrix is the embedding's, too.
  double tied_parameters = 0;    // Of the shared matrix, on this rank.
  std::vector<Operator> operators;
  std::vector<Exchange> exchanges;
  // Seconds in which the host launches its kernels, where that may take longer than they do.
  double host_forward = 0, host_backward = 0;
  double output_bytes = 0;  // Of its result on this rank, for one micro-batch.
  // Activations that are kept from forward to backward, by kind of recomputation.
  double kept_all = 0, kept_selective = 0, kept_input = 0;
  // Most bytes that live only while the block is computed.
  double transient = 0;
};

struct Split {
  double micro_batch = 1;  // Samples.
  int tp = 1, cp = 1, ep = 1;
  bool sequence_parallel = false;
  Precision precision = Precision::kBf16;
  Software software;
};

// Blocks in the order in which a sample passes them. Equal blocks share one object. Throws
// Error(kInvalidArgument), with the nearest sizes that work, if heads, ffn, vocab or experts are
// not divisible as the split needs.
using Blocks = std::vector<std::shared_ptr<const ModelBlock>>;
Blocks blocks_of(const Model& model, const Split& split);

// Counterparts of blocks_of() for each kind of model, in files of their own.
Blocks transformer_blocks(const Model& model, const Split& split);
Blocks convolution_blocks(const Model& model, const Split& split);

}  // namespace weft::plan
