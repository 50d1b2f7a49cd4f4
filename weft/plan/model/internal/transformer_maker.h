// Makes the operators of one transformer block for one rank. Used by transformer.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "weft/plan/model/blocks.h"

namespace weft::plan::internal {

// Parts of a size that is divided over ranks, rounded up; at least 1.
inline std::int64_t over(std::int64_t value, int parts) {
  return std::max<std::int64_t>(1, (value + parts - 1) / parts);
}

class TransformerMaker {
 public:
  TransformerMaker(const Model& model, const Split& split)
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
  void matmul(ModelBlock& b, const char* name, std::int64_t n, std::int64_t k,
              bool again = false) const;
  // `forward` and `backward` in passes over `elements`.
  void memory(ModelBlock& b, const char* name, double elements, double forward,
              double backward) const;
  void kernels(ModelBlock& b, int forward, int backward) const;
  void norm(ModelBlock& b) const;
  void residual(ModelBlock& b) const;
  void attention(ModelBlock& b) const;
  void core(ModelBlock& b) const;
  void rotary(ModelBlock& b) const;
  // For `tokens` times the positions, in products of their own for each of `experts`.
  void mlp(ModelBlock& b, double tokens, std::int64_t experts) const;
  void dispatch(ModelBlock& b) const;
  void mixture(ModelBlock& b) const;
  void tensor_exchanges(ModelBlock& b) const;
  void context_exchanges(ModelBlock& b) const;
  void context_joins(ModelBlock& b) const;
  void gradient_sums(ModelBlock& b) const;
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

}  // namespace weft::plan::internal
