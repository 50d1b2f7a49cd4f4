// Operators of attention, the MLP and mixtures of experts.
#include "weft/plan/model/internal/transformer_maker.h"

namespace weft::plan::internal {
namespace {

// Megatron-Core's mixtures (rows of megatron_bridge; half of the rows, drawn at random, predict the
// other half as well). Passes over the tokens that experts receive, and over the inputs of a biased
// activation that is clamped.
constexpr double kSorts = 6, kFusedSorts = 3.5, kClamps = 12;
// Seconds in which a host launches the kernels of one mixture block, forward and backward.
constexpr double kHost = 7e-3, kHostBehindGraphs = 3.5e-3;

}  // namespace

void TransformerMaker::matmul(ModelBlock& b, const char* name, std::int64_t n, std::int64_t k,
                              bool again) const {
  b.operators.push_back({.name = name, .m = rows_, .n = n, .k = k, .again = again});
}

void TransformerMaker::memory(ModelBlock& b, const char* name, double elements, double forward,
                              double backward) const {
  b.operators.push_back({.kind = OperatorKind::kMemory,
                         .name = name,
                         .forward_bytes = elements * forward * e_,
                         .backward_bytes = elements * backward * e_});
}

void TransformerMaker::kernels(ModelBlock& b, int forward, int backward) const {
  b.operators.back().forward_kernels = forward;
  b.operators.back().backward_kernels = backward;
}

// LayerNorm is one kernel forward and two backward. RMSNorm composed of elementwise operations
// converts to float32, squares, averages, scales and converts back: 18 passes of 2 bytes.
void TransformerMaker::norm(ModelBlock& b) const {
  if (llama() && !s_.software.compiled && !s_.software.fused_elementwise) {
    memory(b, "norm", x_ * share_, 18, 22);
    kernels(b, 7, 10);
  } else {
    memory(b, "norm", x_ * share_, 2, 3);
    kernels(b, 1, 2);
  }
}

// Bias, dropout and the residual addition. A mask has one byte for each element.
void TransformerMaker::residual(ModelBlock& b) const {
  const double mask = drops() ? 1 / e_ : 0;
  if (fused()) {
    memory(b, "residual", x_ * share_, 3 + mask, drops() ? 2 + mask : 1);
  } else {
    const double dropout = drops() ? 2 + mask : 0;
    memory(b, "residual", x_ * share_, 3 + dropout, 3 + dropout);
    kernels(b, drops() ? 2 : 1, drops() ? 2 : 1);
  }
}

void TransformerMaker::rotary(ModelBlock& b) const {
  const double elements = static_cast<double>(rows_ * (heads() + kv_heads()) * m_.head_width);
  const bool one = s_.software.compiled || s_.software.fused_rotary;
  memory(b, "rotary", elements, one ? 2 : 8, one ? 2 : 8);
  kernels(b, one ? 1 : 4, one ? 1 : 4);
  if (m_.kv_heads < m_.heads && !one) {  // keys and values expanded to all heads
    memory(b, "expand", static_cast<double>(rows_ * heads() * m_.head_width), 4, 4);
    kernels(b, 2, 2);
  }
}

void TransformerMaker::core(ModelBlock& b) const {
  const auto samples = std::max<std::int64_t>(1, std::llround(s_.micro_batch));
  const std::int64_t queries = over(positions(m_), s_.cp), keys = positions(m_);
  const std::int64_t batch = samples * heads();
  const std::size_t first = b.operators.size();
  if (s_.software.flash) {
    // A window sees less than the half of the keys that a causal mask leaves.
    const std::int64_t seen = narrow_ ? std::min(keys, 2 * m_.window) : keys;
    b.operators.push_back({.kind = OperatorKind::kAttention,
                           .name = "attention",
                           .m = queries,
                           .n = seen,
                           // Products with keys and with values, whose widths may differ.
                           .k = m_.head_width + m_.rotary_width / 2,
                           .batch = batch,
                           .parts = s_.cp,
                           .has_weights = false,
                           .low_precision = false});
    return;
  }
  const double scores =
      static_cast<double>(batch) * static_cast<double>(queries) * static_cast<double>(keys);
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

void TransformerMaker::attention(ModelBlock& b) const {
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

void TransformerMaker::mlp(ModelBlock& b, const Mlp& shape) const {
  const std::int64_t f = shape.width, h = shape.features;
  const auto rows =
      std::max<std::int64_t>(1, std::llround(static_cast<double>(rows_) * shape.tokens));
  const bool half = s_.software.selective == SelectiveKind::kHalfOfMatmuls;
  const double y = static_cast<double>(rows) * static_cast<double>(f);
  const auto product = [&](const char* name, std::int64_t n, std::int64_t k, bool again) {
    b.operators.push_back({.name = name,
                           .m = std::max<std::int64_t>(1, rows / shape.experts),
                           .n = n,
                           .k = k,
                           .batch = shape.experts,
                           .again = again});
  };
  if (llama() && m_.gated) {
    if (s_.software.joins_gate) {
      product("gate and up", 2 * f, h, false);
    } else {
      product("gate", f, h, false);
      product("up", f, h, half);
    }
    memory(b, "swiglu", y, fused() ? 3 : 5, fused() ? 5 : 9);
    kernels(b, fused() ? 1 : 2, fused() ? 1 : 3);
  } else {
    product("mlp in", f, h, false);
    memory(b, "activation", y, 2, fused() ? 3 : 4);
    kernels(b, 1, fused() ? 1 : 2);
  }
  product("mlp out", h, f, false);
}

// Each token goes to top_k experts and back. With masks, both are products: groups of `sequence`
// positions with a mask of one row for each of the group's top_k * sequence places (GShard,
// Lepikhin et al. 2020, algorithm 1). Making the masks takes some 12 passes over them.
void TransformerMaker::dispatch(ModelBlock& b) const {
  const double k = static_cast<double>(m_.top_k);
  if (s_.software.dispatch == Dispatch::kIndex) {
    const double elements =
        static_cast<double>(rows_ * expert_features()) * (expert_parts() == 1 ? share_ : 1);
    memory(b, "dispatch", elements, 2 + 2 * k, 2 + 2 * k);
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
  const double mask =
      static_cast<double>(groups) * static_cast<double>(group) * static_cast<double>(places);
  b.operators.push_back({.kind = OperatorKind::kMemory,
                         .name = "masks",
                         .forward_bytes = mask * 4 * 12,
                         .backward_bytes = mask * 4 * 6,
                         .forward_kernels = 12,
                         .backward_kernels = 6});
  b.kept_all += 2 * mask * (in_float ? 4 : e_);
}

// A mixture of experts: the router, dispatch and combine, and the experts' MLPs for top_k times the
// tokens. LatentMoE computes them in fewer features, between two products.
void TransformerMaker::mixture(ModelBlock& b) const {
  const double k = static_cast<double>(m_.top_k);
  const std::int64_t features = expert_features();
  const std::size_t first = b.operators.size();
  const bool repeats = s_.software.selective == SelectiveKind::kExperts;
  matmul(b, "router", m_.experts, m_.hidden);
  b.operators.back().low_precision = false;
  if (m_.latent > 0) matmul(b, "to latent", features, m_.hidden);
  dispatch(b);
  grouped(b, {.features = features,
              .width = over(m_.ffn, expert_parts()),
              .tokens = expert_parts() == 1 ? k / s_.tp : k,
              .experts = std::max<std::int64_t>(1, m_.experts / expert_ranks())});
  if (m_.latent > 0) matmul(b, "from latent", m_.hidden, features);
  if (m_.shared_ffn > 0) mlp(b, {.features = m_.hidden, .width = over(m_.shared_ffn, s_.tp)});
  const bool split = s_.software.experts_over_tensor && s_.sequence_parallel;
  b.exchanges.push_back(
      {.axis = SplitAxis::kExpert,
       .kind = ExchangeKind::kAllToAll,
       .bytes = k * static_cast<double>(rows_ * features) * e_ * (split ? share_ : 1),
       .forward = 2,
       .backward = 2,
       .again = 2,
       .selective = repeats ? 2 : 0,
       .copies = s_.software.sends_tokens_once ? k : 0});
  for (std::size_t i = first; repeats && i < b.operators.size(); ++i) b.operators[i].again = true;
  host(b);
}

// Products of the experts, and kernels of their own for what lies between: tokens are sorted and
// padded for each expert, and brought back. One graph of all kernels comes with fused ones.
void TransformerMaker::grouped(ModelBlock& b, const Mlp& shape) const {
  mlp(b, shape);
  if (!s_.software.waits_for_counts) return;
  const double rows = static_cast<double>(rows_) * shape.tokens,
               passes = s_.software.graphs == Graphs::kFull ? kFusedSorts : kSorts;
  memory(b, "sorts", rows * static_cast<double>(shape.features), passes, 2 * passes);
  if (m_.expert_bias)
    memory(b, "bias and clamp", rows * static_cast<double>(2 * shape.width), kClamps, 2 * kClamps);
}

// Backward launches twice as many kernels as forward.
void TransformerMaker::host(ModelBlock& b) const {
  if (!s_.software.waits_for_counts || s_.software.graphs == Graphs::kFull) return;
  const double seconds = s_.software.graphs == Graphs::kNone ? kHost : kHostBehindGraphs;
  b.host_forward = seconds / 3;
  b.host_backward = seconds * 2 / 3;
}

}  // namespace weft::plan::internal
