// Operators of compressed attention and Mamba-2, and blocks that consist of one of these parts.
#include "weft/plan/model/internal/transformer_maker.h"

namespace weft::plan::internal {
namespace {

// Passes over the inner features of a Mamba-2 layer: convolution, gate and norm, inputs and outputs
// of the scan (mamba_ssm).
constexpr double kScanForward = 16, kScanBackward = 32;
constexpr std::int64_t kChunk = 128;  // Positions of a scan's chunk.

}  // namespace

// Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): queries, keys and values are
// products of compressed ones. A head has head_width features with keys of its own and rotary_width
// ones whose keys all heads share; values have head_width.
void TransformerMaker::latent_attention(ModelBlock& b) const {
  const std::int64_t d = m_.head_width, wide = d + m_.rotary_width;
  const double rows = static_cast<double>(rows_);
  norm(b);
  matmul(b, "compressed", m_.query_rank + m_.kv_rank + m_.rotary_width, m_.hidden);
  memory(b, "norms", rows * static_cast<double>(m_.query_rank + m_.kv_rank), 2, 3);
  kernels(b, 2, 4);
  matmul(b, "query", heads() * wide, m_.query_rank, true);
  matmul(b, "key and value", heads() * 2 * d, m_.kv_rank, true);
  // Rotary positions; the shared keys are copied to all heads.
  memory(b, "rotary", rows * static_cast<double>(heads() * wide), 4, 4);
  kernels(b, 2, 2);
  core(b);
  matmul(b, "projection", m_.hidden, heads() * d);
  residual(b);
}

std::int64_t TransformerMaker::state_features() const {
  return m_.state_heads * m_.state_head_width / s_.tp;
}

// Mamba-2 (Dao and Gu 2024): a product for gate, input, states' keys and queries and steps; a
// convolution over four positions; the scan, which multiplies each position by those of its chunk
// and by the states, in kernels that reach the rate of float32 units; a gated norm; a product back.
void TransformerMaker::mamba(ModelBlock& b) const {
  const std::int64_t inner = state_features(), states = 2 * m_.state_groups * m_.state,
                     steps = m_.state_heads / s_.tp;
  norm(b);
  matmul(b, "mamba in", 2 * inner + states / s_.tp + steps, m_.hidden);
  const double features = static_cast<double>(rows_) * static_cast<double>(inner + states / s_.tp);
  memory(b, "scan", features, kScanForward, kScanBackward);
  kernels(b, 8, 12);
  b.operators.push_back({.name = "chunks",
                         .m = rows_,
                         .n = inner,
                         .k = kChunk + 2 * m_.state,
                         .has_weights = false,
                         .in_float = true});
  matmul(b, "mamba out", m_.hidden, inner);
  residual(b);
}

double TransformerMaker::attention_parameters() const {
  const double h = static_cast<double>(m_.hidden), d = static_cast<double>(m_.head_width),
               n = static_cast<double>(heads());
  if (m_.kv_rank == 0)
    return h * static_cast<double>((2 * heads() + 2 * kv_heads()) * m_.head_width);
  const double q = static_cast<double>(m_.query_rank), kv = static_cast<double>(m_.kv_rank),
               r = static_cast<double>(m_.rotary_width);
  return h * (q + kv + r) + n * (q * (d + r) + kv * 2 * d + h * d);
}

double TransformerMaker::mamba_parameters() const {
  const double h = static_cast<double>(m_.hidden), inner = static_cast<double>(state_features());
  return h *
         (3 * inner + static_cast<double>(2 * m_.state_groups * m_.state + m_.state_heads) / s_.tp);
}

ModelBlock TransformerMaker::part(char kind) const {
  ModelBlock b{.name = kind == 'M'   ? "mamba block"
                       : kind == '*' ? "attention block"
                       : kind == 'E' ? "mixture block"
                                     : "block"};
  const double inner = static_cast<double>(rows_ * state_features());
  if (kind == 'M') {
    mamba(b);
    b.parameters = mamba_parameters();
    b.kept_all = (2 * x_ * share_ + 4 * inner) * e_;
  } else if (kind == '*') {
    attention(b);
    b.parameters = attention_parameters();
    const double q = static_cast<double>(rows_ * heads() * m_.head_width),
                 kv = static_cast<double>(rows_ * kv_heads() * m_.head_width);
    b.kept_all = (2 * x_ * share_ + 2 * q + 2 * kv) * e_;
    context_exchanges(b);
  } else {
    norm(b);
    kind == 'E' ? mixture(b) : mlp(b, {.features = m_.hidden, .width = over(m_.ffn, s_.tp)});
    residual(b);
    mlp_parameters(b, kind == 'E', m_.ffn);
    b.kept_all = 2 * x_ * share_ * e_;
    if (kind == 'E') {
      keep_mixture(b);
    } else {
      b.kept_all += 2 * static_cast<double>(rows_ * over(m_.ffn, s_.tp)) * e_;
    }
  }
  b.parameters += static_cast<double>(m_.hidden);
  b.kept_selective = b.kept_all;
  b.kept_input = x_ * share_ * e_;
  tensor_exchanges(b, 1);
  b.output_bytes = x_ * share_ * e_;
  gradient_sums(b);
  b.transient += 2 * x_ * e_ + 2 * inner * e_;
  return b;
}

// A block that predicts the token after the next one (DeepSeek-V3, 2024, section 2.2): it joins the
// hidden representation and an embedding, and has the output layer and the loss again.
ModelBlock TransformerMaker::prediction() const {
  ModelBlock b = m_.pattern.empty() ? layer(m_.experts > 0, false) : part('*');
  if (!m_.pattern.empty()) {
    const ModelBlock second = part('E');
    b.operators.insert(b.operators.end(), second.operators.begin(), second.operators.end());
    b.exchanges.insert(b.exchanges.end(), second.exchanges.begin(), second.exchanges.end());
    b.parameters += second.parameters;
    b.expert_parameters += second.expert_parameters;
    b.kept_all += second.kept_all;
    b.kept_selective += second.kept_selective;
    b.host_forward += second.host_forward;
    b.host_backward += second.host_backward;
  }
  b.name = "prediction";
  b.is_layer = false;
  norm(b);
  norm(b);
  matmul(b, "join", m_.hidden / s_.tp, 2 * m_.hidden);
  b.parameters += 2 * static_cast<double>(m_.hidden) * static_cast<double>(m_.hidden) / s_.tp;
  const ModelBlock last = head();
  b.operators.insert(b.operators.end(), last.operators.begin(), last.operators.end());
  b.exchanges.insert(b.exchanges.end(), last.exchanges.begin(), last.exchanges.end());
  b.kept_all += last.kept_all;
  b.kept_selective += last.kept_selective;
  return b;
}

// LoRA (Hu et al. 2021): a product with weights also passes its input through a product to few
// features and back, whose result is added. Its own weights need no gradient.
void TransformerMaker::adapt(ModelBlock& b) const {
  if (m_.adapter == 0) return;
  double elements = 0;
  int products = 0;
  for (Operator& op : b.operators) {
    const bool weighs = op.kind == OperatorKind::kMatmul && op.has_weights;
    if (!weighs) continue;
    op.frozen = true;
    if (!b.is_layer) continue;
    elements += static_cast<double>(op.batch * op.m) * static_cast<double>(op.k + 2 * op.n);
    ++products;
  }
  if (products == 0) return;
  memory(b, "adapters", elements, 0.5, 1);
  kernels(b, 3 * products, 5 * products);
}

}  // namespace weft::plan::internal
