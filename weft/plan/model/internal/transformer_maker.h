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
  // `narrow`: attention sees a window of the keys.
  ModelBlock layer(bool mixture, bool narrow) const;
  // A block of one part, by its letter in Model::pattern.
  ModelBlock part(char kind) const;
  ModelBlock prediction() const;
  ModelBlock head() const;
  // Freezes the weights and adds LoRA's adapters, if the model has any.
  void adapt(ModelBlock& b) const;

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
  void latent_attention(ModelBlock& b) const;
  void core(ModelBlock& b) const;
  void rotary(ModelBlock& b) const;
  void mamba(ModelBlock& b) const;
  // For `tokens` times the positions, in products of their own for each of `experts`.
  struct Mlp {
    std::int64_t features = 1, width = 1;
    double tokens = 1;
    std::int64_t experts = 1;
  };
  void mlp(ModelBlock& b, const Mlp& shape) const;
  void mlp_parameters(ModelBlock& b, bool mixture, std::int64_t width) const;
  void grouped(ModelBlock& b, const Mlp& shape) const;
  void host(ModelBlock& b) const;
  void keep_mixture(ModelBlock& b) const;
  void dispatch(ModelBlock& b) const;
  void mixture(ModelBlock& b) const;
  // Parts of a block, each with an exchange ahead of it and one behind it.
  void tensor_exchanges(ModelBlock& b, int parts) const;
  void context_exchanges(ModelBlock& b) const;
  void context_joins(ModelBlock& b) const;
  void gradient_sums(ModelBlock& b) const;
  // `width`: of the MLP, or of an expert.
  void keep_layer(ModelBlock& b, bool mixture, std::int64_t width) const;
  double attention_parameters() const;
  double mamba_parameters() const;
  std::int64_t state_features() const;  // Of Mamba-2, on this rank.
  std::int64_t expert_features() const { return m_.latent > 0 ? m_.latent : m_.hidden; }
  // Ranks over which experts are divided.
  int expert_ranks() const { return s_.ep * (s_.software.experts_over_tensor ? s_.tp : 1); }
  int expert_parts() const { return s_.software.experts_over_tensor ? 1 : s_.tp; }
  int matrices() const { return llama() && m_.gated ? 3 : 2; }
  bool llama() const { return m_.family == Family::kLlama; }
  bool drops() const { return m_.dropout; }
  bool fused() const { return s_.software.fused_elementwise || s_.software.compiled; }
  std::int64_t heads() const { return m_.heads / s_.tp; }
  std::int64_t kv_heads() const { return over(m_.kv_heads, s_.tp); }

  const Model& m_;
  const Split& s_;
  bool narrow_ = false;  // Attention of the block that is made sees a window of the keys.
  double e_;
  std::int64_t rows_;  // Positions of the micro-batch on this rank.
  double x_;           // Elements of the hidden representation.
  double share_;       // Share of positions between the split layers.
};

}  // namespace weft::plan::internal
