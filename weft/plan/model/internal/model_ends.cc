// The first and the last block of a transformer: embedding and output layer with the loss.
#include "weft/plan/model/internal/transformer_maker.h"

namespace weft::plan::internal {

ModelBlock TransformerMaker::embedding() const {
  ModelBlock b{.name = "embedding", .recomputes = false, .is_layer = false};
  const double h = static_cast<double>(m_.hidden);
  if (m_.family == Family::kVit) {
    const std::int64_t pixels = m_.patch * m_.patch * m_.channels;
    matmul(b, "patches", m_.hidden, pixels);
    b.operators.back().no_input_gradient = true;
    b.parameters =
        (static_cast<double>(pixels) + 1) * h + static_cast<double>(positions(m_) + 1) * h;
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
    b.exchanges.push_back(
        {.kind = s_.sequence_parallel ? ExchangeKind::kReduceScatter : ExchangeKind::kAllReduce,
         .bytes = x_ * e_,
         .forward = 1,
         .again = 1});
  b.output_bytes = x_ * share_ * e_;
  b.kept_all = b.kept_selective = b.kept_input =
      (drops() ? x_ * share_ : 0) + 8 * static_cast<double>(rows_);
  return b;
}

ModelBlock TransformerMaker::head() const {
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
  // Compiled: forward reads the logits twice, backward reads and writes them.
  const double bytes = s_.software.compiles_loss ? 4 * e_
                       : s_.software.compiled    ? 16
                                                 : s_.software.loss_bytes;
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
    b.exchanges.push_back(
        {.kind = s_.sequence_parallel ? ExchangeKind::kReduceScatter : ExchangeKind::kAllReduce,
         .bytes = x_ * e_,
         .forward = s_.sequence_parallel ? 1 : 0,
         .backward = 1});
  // Kept: the input twice (norm, product) and what the loss keeps of each logit.
  const double loss = s_.software.loss_kept * logits;
  b.kept_all = b.kept_selective = b.kept_input = 2 * x_ * share_ * e_ + loss * 0.4;
  b.transient = loss * 0.6;
  return b;
}

}  // namespace weft::plan::internal
