// Blocks of transformers: the operators of Megatron's layers (Shoeybi et al. 2019, Korthikanti et
// al. 2022), of Llama's and of encoders, with the memory traffic of each elementwise kernel.
//
// Traffic is counted in passes over an array: reading x and writing y of the same size is two
// passes. Unfused chains run one kernel for each operation.
#include <map>

#include "weft/base/error.h"
#include "weft/plan/model/activations.h"
#include "weft/plan/model/blocks.h"
#include "weft/plan/model/internal/transformer_maker.h"

namespace weft::plan {
namespace internal {

// Two all-reduces of activations in forward and two in backward. With sequence parallelism, each is
// a reduce-scatter and an all-gather. Backward gathers two inputs again behind a product, unless
// they are kept. torchtitan's selective recomputation keeps the results of products and of
// reduce-scatters, and gathers again before the first product (_save_list in its
// activation_checkpoint.py).
void TransformerMaker::tensor_exchanges(ModelBlock& b, int parts) const {
  if (s_.tp == 1) return;
  const double bytes = x_ * e_;
  if (!s_.sequence_parallel) {
    b.exchanges.push_back({.bytes = bytes, .forward = parts, .backward = parts, .again = parts});
    return;
  }
  const bool half = s_.software.selective == SelectiveKind::kHalfOfMatmuls;
  b.exchanges.push_back({.kind = ExchangeKind::kAllGather,
                         .bytes = bytes,
                         .forward = parts,
                         .backward = parts,
                         .again = parts,
                         .selective = half ? 2 : 0});
  b.exchanges.push_back({.kind = ExchangeKind::kReduceScatter,
                         .bytes = bytes,
                         .forward = parts,
                         .backward = parts,
                         .again = parts});
  if (s_.software.keeps_gathered) return;
  b.exchanges.push_back(
      {.kind = ExchangeKind::kAllGather, .bytes = bytes, .backward = parts, .hidden_behind = 0.3});
}

void TransformerMaker::gradient_sums(ModelBlock& b) const {
  if (s_.software.sum_bytes == 0 || s_.precision != Precision::kBf16) return;
  constexpr int kKernels = 12;  // One for each tensor of a layer.
  b.operators.push_back(
      {.kind = OperatorKind::kMemory,
       .name = "gradient sums",
       .backward_bytes = (b.parameters + b.expert_parameters) * s_.software.sum_bytes,
       .forward_kernels = 0,
       .backward_kernels = kKernels});
}

// Keys and values pass by every rank, behind the attention of the previous part. With causal
// attention, rank r of c has the r-th of 2 c parts of the sequence and the r-th from the end. It
// sees the first part of every other rank, and the second part of those above it: three quarters.
void TransformerMaker::context_exchanges(ModelBlock& b) const {
  if (s_.cp == 1) return;
  const bool seen_only = s_.software.sends_seen_keys && m_.family != Family::kBert;
  const double bytes = 2.0 * static_cast<double>(rows_ * s_.cp * kv_heads() * m_.head_width) * e_;
  b.exchanges.push_back({.axis = SplitAxis::kContext,
                         .kind = ExchangeKind::kRing,
                         .bytes = bytes,
                         .forward = 1,
                         .backward = 2,
                         .again = 1,
                         .hidden_behind = s_.software.sends_seen_keys ? 0 : 0.5,
                         .sent = seen_only ? 0.75 : 1});
  if (s_.software.sends_seen_keys) context_joins(b);
}

// Copies of keys and values for messages, sums of partial results and of gradients. Backward holds
// the keys of two ranks or the gradients of one more, and the queries' gradients twice.
void TransformerMaker::context_joins(ModelBlock& b) const {
  const double q = static_cast<double>(rows_ * m_.heads * m_.head_width) * e_,
               kv = 2.0 * static_cast<double>(rows_ * kv_heads() * m_.head_width) * e_,
               parts = s_.cp - 1;
  b.operators.push_back({.kind = OperatorKind::kMemory,
                         .name = "joins of attention",
                         .forward_bytes = parts * (4 * q + 4 * kv),
                         .backward_bytes = parts * (4 * q + 8 * kv),
                         .forward_kernels = 10 * (s_.cp - 1),
                         .backward_kernels = 14 * (s_.cp - 1)});
  b.transient += 2 * q + 4 * kv;
}

void TransformerMaker::keep_layer(ModelBlock& b, bool mixture, std::int64_t width) const {
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
                            .hidden = width,
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
    b.kept_all -= static_cast<double>(rows_) * static_cast<double>(over(width, s_.tp)) * e_;
  b.kept_input = x_ * share_ * e_;
  b.kept_selective = bytes(Kept::kSelective) + before;
  const double q = static_cast<double>(rows_ * heads() * m_.head_width) * e_,
               kv = static_cast<double>(rows_ * kv_heads() * m_.head_width) * e_,
               f = static_cast<double>(rows_) * static_cast<double>(over(width, s_.tp)) * e_;
  if (s_.software.selective == SelectiveKind::kHalfOfMatmuls)
    b.kept_selective = 2 * x_ * share_ * e_ + 2 * q + kv + f;
  if (s_.software.selective == SelectiveKind::kEverySecondLayer)
    b.kept_selective = (b.kept_all + b.kept_input) / 2;
  if (mixture) keep_mixture(b);
}

// Dispatched tokens, and the experts' activations for top_k times the tokens.
void TransformerMaker::keep_mixture(ModelBlock& b) const {
  const double f = static_cast<double>(rows_) * static_cast<double>(over(m_.ffn, s_.tp)) * e_,
               x = static_cast<double>(rows_ * expert_features()) * e_,
               more = static_cast<double>(m_.top_k - 1) * (s_.software.compiled ? 1 : 2) * f +
                      2 * static_cast<double>(m_.top_k) * x;
  b.kept_all += more;
  b.kept_selective += more;
}

void TransformerMaker::mlp_parameters(ModelBlock& b, bool mixture, std::int64_t width) const {
  const double h = static_cast<double>(m_.hidden), x = static_cast<double>(expert_features()),
               n = matrices(), shared = static_cast<double>(m_.shared_ffn);
  if (!mixture) {
    b.parameters += n * h * static_cast<double>(width) / s_.tp;
    return;
  }
  b.parameters += h * (static_cast<double>(m_.experts) + n * shared / s_.tp);
  if (m_.latent > 0) b.parameters += 2 * h * x;
  b.expert_parameters =
      n * x * static_cast<double>(m_.ffn) / s_.tp * static_cast<double>(m_.experts) / s_.ep;
}

ModelBlock TransformerMaker::layer(bool has_experts, bool narrow) const {
  if (narrow) {
    TransformerMaker other = *this;
    other.narrow_ = true;
    return other.layer(has_experts, false);
  }
  ModelBlock b{.name = has_experts ? "mixture block" : "block"};
  const bool own_width = !has_experts && m_.experts > 0 && m_.dense_ffn > 0;
  const std::int64_t width = own_width ? m_.dense_ffn : m_.ffn;
  m_.kv_rank > 0 ? latent_attention(b) : attention(b);
  norm(b);
  if (has_experts) {
    mixture(b);
  } else {
    mlp(b, {.features = m_.hidden, .width = over(width, s_.tp)});
  }
  residual(b);
  tensor_exchanges(b, 2);
  context_exchanges(b);
  const double h = static_cast<double>(m_.hidden), t = s_.tp;
  b.parameters = attention_parameters();
  b.parameters += llama() ? 2 * h : 6 * h + static_cast<double>(width + 3 * m_.hidden) / t;
  mlp_parameters(b, has_experts, width);
  b.output_bytes = x_ * share_ * e_;
  gradient_sums(b);
  keep_layer(b, has_experts, width);
  b.transient += 2 * x_ * e_ + 2 * static_cast<double>(rows_ * over(width, s_.tp)) * e_;
  return b;
}

}  // namespace internal

namespace {

void check_divides(const char* what, std::int64_t value, const char* axis, int size) {
  if (value % size == 0) return;
  std::string fits;
  for (int n = size; n >= 1 && fits.empty(); --n)
    if (value % n == 0) fits = std::to_string(n);
  throw Error(Errc::kInvalidArgument, std::string(axis) + " = " + std::to_string(size) +
                                          " does not divide " + what + " = " +
                                          std::to_string(value) + "; use " + axis + " = " + fits);
}

void check_split(const Model& m, const Split& s) {
  check_divides("heads", m.heads, "tp", s.tp);
  check_divides("ffn", m.ffn, "tp", s.tp);
  if (m.experts > 0) check_divides("dense_ffn", m.dense_ffn, "tp", s.tp);
  if (s.ep > 1) {
    WEFT_REQUIRE(m.experts > 0,
                 "ep = " + std::to_string(s.ep) + " needs a model with experts; use ep = 1");
    check_divides("experts", m.experts, "ep", s.ep);
  }
  WEFT_REQUIRE(s.cp <= positions(m), "cp = " + std::to_string(s.cp) + " is more than the " +
                                         std::to_string(positions(m)) + " positions of a sample");
}

}  // namespace

namespace internal {

Blocks transformer_blocks_of(const Model& model, const Split& split) {
  const TransformerMaker maker(model, split);
  std::map<std::string, std::shared_ptr<const ModelBlock>> known;
  Blocks blocks;
  const auto add = [&](const std::string& kind, const auto& make) {
    auto& block = known[kind];
    if (block == nullptr) {
      ModelBlock made = make();
      maker.adapt(made);
      block = std::make_shared<const ModelBlock>(std::move(made));
    }
    blocks.push_back(block);
  };
  add("embedding", [&] { return maker.embedding(); });
  for (const char kind : model.pattern) add({kind}, [&] { return maker.part(kind); });
  for (std::int64_t l = 1; model.pattern.empty() && l <= model.layers; ++l) {
    const bool mixture =
        model.experts > 0 && l > model.dense_layers && l % model.expert_interval == 0;
    const bool narrow = model.window > 0 && l % 2 == 1;
    add(std::to_string(mixture) + std::to_string(narrow),
        [&] { return maker.layer(mixture, narrow); });
  }
  for (std::int64_t i = 0; i < model.predicts; ++i)
    add("prediction", [&] { return maker.prediction(); });
  add("head", [&] { return maker.head(); });
  return blocks;
}

}  // namespace internal

Blocks transformer_blocks(const Model& model, const Split& split) {
  check_split(model, split);
  return internal::transformer_blocks_of(model, split);
}

}  // namespace weft::plan
