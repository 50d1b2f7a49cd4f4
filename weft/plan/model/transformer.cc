// Blocks of transformers: the operators of Megatron's layers (Shoeybi et al. 2019, Korthikanti et
// al. 2022), of Llama's and of encoders, with the memory traffic of each elementwise kernel.
//
// Traffic is counted in passes over an array: reading x and writing y of the same size is two
// passes. Unfused chains run one kernel for each operation.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/base/error.h"
#include "weft/plan/activations.h"
#include "weft/plan/model/blocks.h"

namespace weft::plan {
namespace {

std::int64_t over(std::int64_t value, int parts) {
  return std::max<std::int64_t>(1, (value + parts - 1) / parts);
}

void check_divides(const char* what, std::int64_t value, const char* axis, int size) {
  if (value % size == 0) return;
  std::string fits;
  for (int n = size; n >= 1 && fits.empty(); --n)
    if (value % n == 0) fits = std::to_string(n);
  throw Error(Errc::kInvalidArgument, std::string(axis) + " = " + std::to_string(size) +
                                          " does not divide " + what + " = " +
                                          std::to_string(value) + "; use " + axis + " = " + fits);
}

// Makes the operators of one block for one rank.
class Maker {
 public:
  Maker(const Model& model, const Split& split)
      : m_(model),
        s_(split),
        e_(element_bytes(split.precision)),
        rows_(std::max<std::int64_t>(
            1, std::llround(split.micro_batch *
                            static_cast<double>(over(positions(model), split.cp))))),
        x_(static_cast<double>(rows_) * static_cast<double>(model.hidden)),
        share_(split.sequence_parallel ? 1.0 / split.tp : 1.0) {}

  ModelBlock embedding() const;
  ModelBlock layer(bool mixture) const;
  ModelBlock head() const;

 private:
  void matmul(ModelBlock& b, const char* name, std::int64_t n, std::int64_t k, bool again = false) const;
  // `forward` and `backward` in passes over `elements`.
  void memory(ModelBlock& b, const char* name, double elements, double forward, double backward) const;
  void kernels(ModelBlock& b, int forward, int backward) const;
  void norm(ModelBlock& b) const;
  void residual(ModelBlock& b) const;
  void attention(ModelBlock& b) const;
  void core(ModelBlock& b) const;
  void rotary(ModelBlock& b) const;
  void mlp(ModelBlock& b, double tokens) const;
  void dispatch(ModelBlock& b) const;
  void mixture(ModelBlock& b) const;
  void tensor_exchanges(ModelBlock& b) const;
  void context_exchanges(ModelBlock& b) const;
  void keep_layer(ModelBlock& b, bool mixture) const;
  bool llama() const { return m_.family == Family::kLlama; }
  bool drops() const { return m_.dropout; }
  bool fused() const { return s_.software.fused_elementwise || s_.software.compiled; }
  std::int64_t heads() const { return m_.heads / s_.tp; }
  std::int64_t kv_heads() const { return over(m_.kv_heads, s_.tp); }

  const Model& m_;
  const Split& s_;
  double e_;
  std::int64_t rows_;  // Positions of the micro-batch on this rank.
  double x_;           // Elements of the hidden representation.
  double share_;       // Share of positions between the split layers.
};

void Maker::matmul(ModelBlock& b, const char* name, std::int64_t n, std::int64_t k, bool again) const {
  b.operators.push_back({.name = name, .m = rows_, .n = n, .k = k, .again = again});
}

void Maker::memory(ModelBlock& b, const char* name, double elements, double forward,
                   double backward) const {
  b.operators.push_back({.kind = OperatorKind::kMemory,
                         .name = name,
                         .forward_bytes = elements * forward * e_,
                         .backward_bytes = elements * backward * e_});
}

void Maker::kernels(ModelBlock& b, int forward, int backward) const {
  b.operators.back().forward_kernels = forward;
  b.operators.back().backward_kernels = backward;
}

// LayerNorm is one kernel forward and two backward. RMSNorm composed of elementwise operations
// converts to float32, squares, averages, scales and converts back: 18 passes of 2 bytes.
void Maker::norm(ModelBlock& b) const {
  if (llama() && !s_.software.compiled && !s_.software.fused_elementwise) {
    memory(b, "norm", x_ * share_, 18, 22);
    kernels(b, 7, 10);
  } else {
    memory(b, "norm", x_ * share_, 2, 3);
    kernels(b, 1, 2);
  }
}

// Bias, dropout and the residual addition. A mask has one byte for each element.
void Maker::residual(ModelBlock& b) const {
  const double mask = drops() ? 1 / e_ : 0;
  if (fused()) {
    memory(b, "residual", x_ * share_, 3 + mask, drops() ? 2 + mask : 1);
  } else {
    const double dropout = drops() ? 2 + mask : 0;
    memory(b, "residual", x_ * share_, 3 + dropout, 3 + dropout);
    kernels(b, drops() ? 2 : 1, drops() ? 2 : 1);
  }
}

void Maker::rotary(ModelBlock& b) const {
  const double elements = static_cast<double>(rows_ * (heads() + kv_heads()) * m_.head_width);
  const bool one = s_.software.compiled;
  memory(b, "rotary", elements, one ? 2 : 8, one ? 2 : 8);
  kernels(b, one ? 1 : 4, one ? 1 : 4);
  if (m_.kv_heads < m_.heads && !one) {  // keys and values expanded to all heads
    memory(b, "expand", static_cast<double>(rows_ * heads() * m_.head_width), 4, 4);
    kernels(b, 2, 2);
  }
}

void Maker::core(ModelBlock& b) const {
  const auto samples = std::max<std::int64_t>(1, std::llround(s_.micro_batch));
  const std::int64_t queries = over(positions(m_), s_.cp), keys = positions(m_);
  const std::int64_t batch = samples * heads();
  const std::size_t first = b.operators.size();
  if (s_.software.flash) {
    b.operators.push_back({.kind = OperatorKind::kAttention,
                           .name = "attention",
                           .m = queries,
                           .n = keys,
                           .k = m_.head_width,
                           .batch = batch,
                           .parts = s_.cp,
                           .has_weights = false,
                           .low_precision = false});
    return;
  }
  const double scores = static_cast<double>(batch) * static_cast<double>(queries) *
                        static_cast<double>(keys);
  const auto product = [&](const char* name, std::int64_t n, std::int64_t k) {
    b.operators.push_back({.name = name,
                           .m = queries,
                           .n = n,
                           .k = k,
                           .batch = batch,
                           .has_weights = false,
                           .low_precision = false});
  };
  product("scores", keys, m_.head_width);
  const bool one = s_.software.compiled;
  const double ahead = one ? 2 : s_.software.softmax_forward,
               back = one ? 3 : s_.software.softmax_backward;
  memory(b, "softmax", scores, ahead, back);
  kernels(b, ahead > 2 ? 3 : 1, ahead > 2 ? 2 : 1);
  if (drops()) memory(b, "attention dropout", scores, 2 + 1 / e_, 2 + 1 / e_);
  product("context", m_.head_width, keys);
  for (std::size_t i = first; i < b.operators.size(); ++i) b.operators[i].again = true;
}

void Maker::attention(ModelBlock& b) const {
  const std::int64_t d = m_.head_width, q = heads() * d, kv = kv_heads() * d;
  const bool half = s_.software.selective == SelectiveKind::kHalfOfMatmuls;
  norm(b);
  if (llama() && half) {
    matmul(b, "query", q, m_.hidden);
    matmul(b, "key", kv, m_.hidden, true);
    matmul(b, "value", kv, m_.hidden);
  } else {
    matmul(b, "qkv", q + 2 * kv, m_.hidden);
  }
  if (llama()) {
    rotary(b);
  } else {
    // Biases add their gradients. Without Megatron's layout, heads are transposed.
    const bool moves = !s_.software.fused_elementwise && !s_.software.compiled;
    memory(b, "qkv bias", static_cast<double>(rows_ * (q + 2 * kv)), moves ? 2 : 0, moves ? 3 : 1);
  }
  core(b);
  matmul(b, "projection", m_.hidden, q, half);
  residual(b);
}

void Maker::mlp(ModelBlock& b, double tokens) const {
  const std::int64_t f = over(m_.ffn, s_.tp);
  const auto rows = std::max<std::int64_t>(1, std::llround(static_cast<double>(rows_) * tokens));
  const bool half = s_.software.selective == SelectiveKind::kHalfOfMatmuls;
  const double y = static_cast<double>(rows) * static_cast<double>(f);
  const auto product = [&](const char* name, std::int64_t n, std::int64_t k, bool again) {
    b.operators.push_back({.name = name, .m = rows, .n = n, .k = k, .again = again});
  };
  if (llama()) {
    product("gate", f, m_.hidden, false);
    product("up", f, m_.hidden, half);
    memory(b, "swiglu", y, fused() ? 3 : 5, fused() ? 5 : 9);
    kernels(b, fused() ? 1 : 2, fused() ? 1 : 3);
  } else {
    product("mlp in", f, m_.hidden, false);
    memory(b, "gelu", y, 2, fused() ? 3 : 4);
    kernels(b, 1, fused() ? 1 : 2);
  }
  product("mlp out", m_.hidden, f, false);
}

// Each token goes to top_k experts and back. With masks, both are products: groups of `sequence`
// positions with a mask of one row for each of the group's top_k * sequence places (GShard, Lepikhin
// et al. 2020, algorithm 1). Making the masks takes some 12 passes over them.
void Maker::dispatch(ModelBlock& b) const {
  const double k = static_cast<double>(m_.top_k);
  if (s_.software.dispatch == Dispatch::kIndex) {
    memory(b, "dispatch", x_, 2 + 2 * k, 2 + 2 * k);
    kernels(b, 6, 6);
    return;
  }
  const bool in_float = s_.software.dispatch == Dispatch::kMaskFloat;
  const std::int64_t group = in_float ? std::min(rows_, positions(m_)) : rows_,
                     places = m_.top_k * group, groups = std::max<std::int64_t>(1, rows_ / group);
  const Operator product = {.name = "dispatch",
                            .m = places,
                            .n = m_.hidden,
                            .k = group,
                            .batch = groups,
                            .has_weights = false,
                            .low_precision = false,
                            .in_float = in_float};
  b.operators.push_back(product);
  b.operators.push_back(product);
  const double mask = static_cast<double>(groups) * static_cast<double>(group) *
                      static_cast<double>(places);
  b.operators.push_back({.kind = OperatorKind::kMemory,
                         .name = "masks",
                         .forward_bytes = mask * 4 * 12,
                         .backward_bytes = mask * 4 * 6,
                         .forward_kernels = 12,
                         .backward_kernels = 6});
  b.kept_all += 2 * mask * (in_float ? 4 : e_);
}

// A mixture of experts: the router, dispatch and combine, and the experts' MLPs for top_k times the
// tokens.
void Maker::mixture(ModelBlock& b) const {
  const double k = static_cast<double>(m_.top_k);
  matmul(b, "router", m_.experts, m_.hidden);
  dispatch(b);
  mlp(b, k);
  b.exchanges.push_back({.axis = SplitAxis::kExpert,
                         .kind = ExchangeKind::kAllToAll,
                         .bytes = k * x_ * e_,
                         .forward = 2,
                         .backward = 2,
                         .again = 2});
}

// Two all-reduces of activations in forward and two in backward. With sequence parallelism, each is
// a reduce-scatter and an all-gather, and backward gathers two inputs again behind a product.
void Maker::tensor_exchanges(ModelBlock& b) const {
  if (s_.tp == 1) return;
  const double bytes = x_ * e_;
  if (!s_.sequence_parallel) {
    b.exchanges.push_back({.bytes = bytes, .forward = 2, .backward = 2, .again = 2});
    return;
  }
  b.exchanges.push_back({.kind = ExchangeKind::kAllGather,
                         .bytes = bytes,
                         .forward = 2,
                         .backward = 2,
                         .again = 2});
  b.exchanges.push_back({.kind = ExchangeKind::kReduceScatter,
                         .bytes = bytes,
                         .forward = 2,
                         .backward = 2,
                         .again = 2});
  b.exchanges.push_back(
      {.kind = ExchangeKind::kAllGather, .bytes = bytes, .backward = 2, .hidden_behind = 0.3});
}

// Keys and values pass by every rank, behind the attention of the previous part.
void Maker::context_exchanges(ModelBlock& b) const {
  if (s_.cp == 1) return;
  const double bytes =
      2.0 * static_cast<double>(rows_ * s_.cp * kv_heads() * m_.head_width) * e_;
  b.exchanges.push_back({.axis = SplitAxis::kContext,
                         .kind = ExchangeKind::kRing,
                         .bytes = bytes,
                         .forward = 1,
                         .backward = 2,
                         .again = 1,
                         .hidden_behind = 0.5});
}

void Maker::keep_layer(ModelBlock& b, bool mixture) const {
  Keeping keeping = {.element = static_cast<std::int64_t>(e_),
                     .mask = 1,
                     .fused = s_.software.flash,
                     .details = false,
                     .gathers_again = !s_.software.keeps_gathered,
                     .lets_go = false};
  const LayerShape shape = {.batch = std::max<std::int64_t>(1, std::llround(s_.micro_batch)),
                            .sequence = positions(m_),
                            .width = m_.hidden,
                            .heads = m_.heads,
                            .head_width = m_.head_width,
                            .hidden = m_.ffn,
                            .gated = llama(),
                            .rms = llama()};
  ActivationOptions options = {.tp = s_.tp,
                               .split_sequence = s_.sequence_parallel,
                               .cp = s_.cp,
                               .dropout = drops(),
                               .keeping = keeping};
  const auto bytes = [&](Kept kept) {
    options.kept = kept;
    return static_cast<double>(activation_bytes(shape, options));
  };
  const double before = b.kept_all;  // Masks of the dispatch.
  b.kept_all = bytes(Kept::kAll) + before;
  b.kept_all += s_.software.more_kept * x_ / s_.tp * e_;
  if (!s_.software.flash)
    b.kept_all += s_.software.scores_kept * s_.micro_batch * static_cast<double>(heads()) *
                  static_cast<double>(over(positions(m_), s_.cp)) *
                  static_cast<double>(positions(m_));
  // Compilers compute the activation function again instead of keeping its result.
  if (s_.software.compiled)
    b.kept_all -= static_cast<double>(rows_) * static_cast<double>(over(m_.ffn, s_.tp)) * e_;
  b.kept_input = x_ * share_ * e_;
  b.kept_selective = bytes(Kept::kSelective) + before;
  const double q = static_cast<double>(rows_ * heads() * m_.head_width) * e_,
               kv = static_cast<double>(rows_ * kv_heads() * m_.head_width) * e_,
               f = static_cast<double>(rows_) * static_cast<double>(over(m_.ffn, s_.tp)) * e_;
  if (s_.software.selective == SelectiveKind::kHalfOfMatmuls)
    b.kept_selective = 2 * x_ * share_ * e_ + 2 * q + kv + f;
  if (s_.software.selective == SelectiveKind::kEverySecondLayer)
    b.kept_selective = (b.kept_all + b.kept_input) / 2;
  if (mixture) {  // dispatched tokens, and the experts' activations for top_k times the tokens
    const double more = static_cast<double>(m_.top_k - 1) * (s_.software.compiled ? 1 : 2) * f +
                        2 * static_cast<double>(m_.top_k) * x_ * e_;
    b.kept_all += more;
    b.kept_selective += more;
  }
}

ModelBlock Maker::layer(bool has_experts) const {
  ModelBlock b{.name = has_experts ? "mixture block" : "block"};
  attention(b);
  norm(b);
  if (has_experts) {
    mixture(b);
  } else {
    mlp(b, 1);
  }
  residual(b);
  tensor_exchanges(b);
  context_exchanges(b);
  const double h = static_cast<double>(m_.hidden), t = s_.tp,
               matrices = (llama() ? 3 : 2) * h * static_cast<double>(m_.ffn) / t;
  b.parameters = h * static_cast<double>((2 * heads() + 2 * kv_heads()) * m_.head_width);
  b.parameters += llama() ? 2 * h : 6 * h + static_cast<double>(m_.ffn + 3 * m_.hidden) / t;
  if (has_experts) {
    b.parameters += h * static_cast<double>(m_.experts);
    b.expert_parameters = matrices * static_cast<double>(m_.experts) / s_.ep;
  } else {
    b.parameters += matrices;
  }
  b.output_bytes = x_ * share_ * e_;
  keep_layer(b, has_experts);
  b.transient = 2 * x_ * e_ + 2 * static_cast<double>(rows_ * over(m_.ffn, s_.tp)) * e_;
  return b;
}

ModelBlock Maker::embedding() const {
  ModelBlock b{.name = "embedding", .recomputes = false, .is_layer = false};
  const double h = static_cast<double>(m_.hidden);
  if (m_.family == Family::kVit) {
    const std::int64_t pixels = m_.patch * m_.patch * m_.channels;
    matmul(b, "patches", m_.hidden, pixels);
    b.operators.back().no_input_gradient = true;
    b.parameters = (static_cast<double>(pixels) + 1) * h +
                   static_cast<double>(positions(m_) + 1) * h;
  } else {
    b.tied_parameters = static_cast<double>(over(m_.vocab, s_.tp)) * h;
    b.parameters = b.tied_parameters;
    if (m_.family == Family::kBert) b.parameters += 516 * h;
    if (m_.family == Family::kGpt || m_.family == Family::kMoe)
      b.parameters += static_cast<double>(m_.sequence) * h;
  }
  // Look up, add positions, dropout; backward scatters into a dense gradient of the table.
  memory(b, "embedding", x_ * share_, 5, 4);
  kernels(b, 4, 4);
  b.operators.back().backward_bytes += b.tied_parameters * e_;
  if (s_.tp > 1 && m_.family != Family::kVit)
    b.exchanges.push_back({.kind = s_.sequence_parallel ? ExchangeKind::kReduceScatter
                                                        : ExchangeKind::kAllReduce,
                           .bytes = x_ * e_,
                           .forward = 1,
                           .again = 1});
  b.output_bytes = x_ * share_ * e_;
  b.kept_all = b.kept_selective = b.kept_input = (drops() ? x_ * share_ : 0) +
                                                 8 * static_cast<double>(rows_);
  return b;
}

ModelBlock Maker::head() const {
  ModelBlock b{.name = "head", .recomputes = false, .is_layer = false};
  const double h = static_cast<double>(m_.hidden);
  norm(b);
  b.parameters = (llama() ? 1 : 2) * h;
  std::int64_t rows = rows_, outputs = over(m_.vocab, s_.tp);
  if (m_.family == Family::kBert) {
    const double samples = s_.micro_batch;
    rows = std::max<std::int64_t>(1, std::llround(samples * static_cast<double>(m_.predicted)));
    b.operators.push_back({.name = "transform", .m = rows, .n = m_.hidden, .k = m_.hidden});
    b.parameters += 2 * (h * h + h) + 2 * h + static_cast<double>(m_.vocab);
  } else if (m_.family == Family::kVit) {
    rows = std::max<std::int64_t>(1, std::llround(s_.micro_batch));
    outputs = m_.classes;
    b.parameters += (h + 1) * static_cast<double>(m_.classes);
  }
  b.operators.push_back(
      {.name = "logits", .m = rows, .n = outputs, .k = m_.hidden, .low_precision = false});
  const double logits = static_cast<double>(rows) * static_cast<double>(outputs);
  const double bytes = s_.software.compiled ? 16 : s_.software.loss_bytes;
  b.operators.push_back({.kind = OperatorKind::kMemory,
                         .name = "loss",
                         .forward_bytes = logits * bytes * 0.65,
                         .backward_bytes = logits * bytes * 0.35,
                         .forward_kernels = s_.software.compiled ? 3 : 8,
                         .backward_kernels = s_.software.compiled ? 2 : 3});
  if (m_.family != Family::kVit) {
    b.tied_to_first = m_.tied || m_.family == Family::kBert;
    b.tied_parameters = static_cast<double>(outputs) * h;
    if (!b.tied_to_first) b.parameters += b.tied_parameters;
  }
  if (s_.tp > 1 && m_.family != Family::kVit)
    b.exchanges.push_back({.kind = s_.sequence_parallel ? ExchangeKind::kReduceScatter
                                                        : ExchangeKind::kAllReduce,
                           .bytes = x_ * e_,
                           .forward = s_.sequence_parallel ? 1 : 0,
                           .backward = 1});
  // Kept: the input twice (norm, product) and what the loss keeps of each logit.
  const double loss = s_.software.loss_kept * logits;
  b.kept_all = b.kept_selective = b.kept_input = 2 * x_ * share_ * e_ + loss * 0.4;
  b.transient = loss * 0.6;
  return b;
}

void check_split(const Model& m, const Split& s) {
  check_divides("heads", m.heads, "tp", s.tp);
  check_divides("ffn", m.ffn, "tp", s.tp);
  if (s.ep > 1) {
    WEFT_REQUIRE(m.experts > 0, "ep = " + std::to_string(s.ep) +
                                    " needs a model with experts; use ep = 1");
    check_divides("experts", m.experts, "ep", s.ep);
  }
  WEFT_REQUIRE(s.cp <= positions(m), "cp = " + std::to_string(s.cp) + " is more than the " +
                                         std::to_string(positions(m)) + " positions of a sample");
}

}  // namespace

Blocks transformer_blocks(const Model& model, const Split& split) {
  check_split(model, split);
  const Maker maker(model, split);
  Blocks blocks{std::make_shared<const ModelBlock>(maker.embedding())};
  const auto plain = std::make_shared<const ModelBlock>(maker.layer(false));
  const auto mixture = model.experts > 0 ? std::make_shared<const ModelBlock>(maker.layer(true)) : plain;
  for (std::int64_t l = 1; l <= model.layers; ++l) {
    const bool has_experts = model.experts > 0 && l % model.expert_interval == 0;
    blocks.push_back(has_experts ? mixture : plain);
  }
  blocks.push_back(std::make_shared<const ModelBlock>(maker.head()));
  return blocks;
}

}  // namespace weft::plan
