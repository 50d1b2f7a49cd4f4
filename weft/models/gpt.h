// GPT: decoder-only transformers, by options: GPT-2 (Radford et al., "Language Models are
// Unsupervised Multitask Learners", 2019), Llama (Touvron et al. 2023) and mixtures of both.
//
//   tokens ─ embedding ─ block 0 ─ … ─ block n-1 ─ head ─ logits
//   block:  x + attention(norm1(x)), then x + mlp(norm2(x))
//
// The layers are those of parallel/tensor: split over a group's ranks, or plain in a group of one.
// A model is a list of parts, each a module from tensor to tensor, so pipelines, sharding and
// recomputation can take them one by one.
//
// Traffic of a rank in a step without split sequence: 1 + 2 layers all-reduces of an activation
// [batch, sequence, width] in forward, as many in backward, and the cross-entropy's three numbers
// per token (parallel/tensor/vocabulary.h). parallel/experts states what blocks of experts add.
//
// With a ContextParallel of several ranks, each rank has its part of the positions from embedding
// to logits. Only attention (parallel/context/attention.h) and the loss communicate over it.
// context_parallel.h describes gradients.
//
// plan/model/activations.h lists the tensors that a block keeps for its backward. options.selective
// and parallel/recompute reduce them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/experts/mixture.h"
#include "weft/parallel/tensor/attention.h"
#include "weft/parallel/tensor/dropout.h"
#include "weft/parallel/tensor/norm.h"
#include "weft/parallel/tensor/vocabulary.h"

namespace weft::models {

enum class Norm { kLayerNorm, kRmsNorm };
enum class Positions { kLearned, kRotary };
enum class Activation {
  kGelu,
  kGeluTanh,  // Approximation of GELU by tanh, as in GPT-2.
  // silu(gate) · up (Shazeer, "GLU Variants Improve Transformer", 2020).
  kSwiglu,
};

// Options of a GPT. The defaults are GPT-2's smallest model.
struct GptOptions {
  std::int64_t vocabulary = 50257;  // Vocabulary size, padded where ranks do not divide it.
  std::int64_t layers = 12, width = 768, heads = 12;
  std::int64_t kv_heads = 0;            // Heads of keys and values. 0: as many as heads.
  std::int64_t head_width = 0;          // Width of a head. 0: width / heads.
  std::int64_t hidden = 0;              // Width of the MLP. 0: 4 · width.
  std::int64_t sequence_length = 1024;  // Longest sequence, with learned positions.
  Norm norm = Norm::kLayerNorm;
  double norm_eps = 1e-5;
  Positions positions = Positions::kLearned;
  double rope_theta = 10000;
  parallel::RopeScaling rope_scaling;
  Activation activation = Activation::kGeluTanh;
  bool bias = true;             // Biases of linear layers and LayerNorms.
  bool attention_bias = false;  // Biases of attention's linear layers where `bias` is false.
  bool tied = true;             // The head uses the embedding's weight.
  double dropout = 0;           // Dropout: embedding, attention weights, each half of a block.
  // Initial weights N(0, std²), with std / sqrt(2 layers) where the output is added to the block's
  // input (GPT-2, 2.3). 0: libtorch's own.
  double initial_std = 0.02;
  // Pieces of products that are summed over ranks, as in parallel::LinearOptions::chunks.
  int chunks = 1;
  // kSplit: between the split layers, each rank has a part of the sequence.
  parallel::Sequence sequence = parallel::Sequence::kWhole;
  // Selective recomputation of large, cheap activations (Korthikanti et al. 2022, 5): backward
  // recomputes scores, softmax and masks of attention with dropout, results of norms, and the MLP's
  // activation. It recomputes no product of a weight and sends nothing more; the bits are the same.
  // In float32 without dropout, a GPT-2 block keeps 10 instead of 16 times batch · sequence ·
  // width. Not supported for norms where the sequence is split, nor for experts and their norm.
  bool selective = false;
  // Above 0: number of experts that replace each block's MLP, without biases; each token goes to
  // experts_top_k of them (parallel/experts). Weights are over the chosen experts, as in Mixtral;
  // with experts_top_k = 1 over all, as in Switch. Needs sequence = kWhole.
  std::int64_t experts = 0;
  std::int64_t experts_top_k = 2;
  double experts_capacity = 0;    // Capacity factor (RouterOptions). 0: no token is dropped.
  double experts_balance = 0.01;  // Weight of each layer's balance loss in loss().
  double experts_z = 0;           // Weight of the router z-loss in loss().
  double experts_jitter = 0;
  double targets_per_sample = 0;  // > 0: the loss divides by these, not by those of a part
};

// Returns `options` with Llama's norm, positions and activation, without biases and with an untied
// head.
GptOptions like_llama(GptOptions options);

// One part of the model: embedding, block or head. `documents`, if given, has the document of each
// position (int64 [batch, sequence]); the positions of a document are contiguous. A position then
// sees its own document only, and learned positions count from the document's start.
class GptPart : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {}) = 0;
  // Auxiliary loss of the last forward, with gradient (parallel::MixtureOfExperts::auxiliary);
  // undefined without one. If forward is wrapped in recompute(), return this loss as a second
  // result and pass it to set_auxiliary(). Otherwise Gpt::loss() uses that of the first run, from
  // which no gradient reaches earlier parts. In a pipeline, stages pass it on to the last stage,
  // which adds it to its loss.
  const at::Tensor& auxiliary() const { return auxiliary_; }
  void set_auxiliary(const at::Tensor& auxiliary) { auxiliary_ = auxiliary; }

 protected:
  at::Tensor auxiliary_;
};

// int64 [batch, whole sequence] -> [batch, this rank's positions, width].
class GptEmbedding : public GptPart {
 public:
  GptEmbedding(const GptOptions& options, const parallel::TensorParallel& tp,
               const parallel::ContextParallel& cp = {});
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& documents = {}) override;
  // As forward(), for tokens at positions `first` and on.
  at::Tensor extend(const at::Tensor& tokens, std::int64_t first);

  parallel::Embedding tokens{nullptr};
  // [sequence_length, width], whole on every rank. Undefined with rotary positions.
  at::Tensor positions;

 private:
  at::Tensor places_of(std::int64_t sequence, const at::Tensor& documents) const;

  GptOptions options_;
  parallel::TensorParallel tp_;
  parallel::ContextParallel cp_;
  parallel::Dropout dropout_;
};

// LayerNorm or RMSNorm, by option. Parameters: weight, and bias where the norm has one.
class GptNorm : public torch::nn::Module {
 public:
  GptNorm(const GptOptions& options, const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;

 private:
  parallel::LayerNorm layer_{nullptr};
  parallel::RMSNorm rms_{nullptr};
};

// MLP of a block: down_proj(activation(up_proj(x))), or down_proj(silu(gate_proj(x)) · up_proj(x)).
class GptMlp : public torch::nn::Module {
 public:
  GptMlp(const GptOptions& options, const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x);

  parallel::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};

 private:
  GptOptions options_;
  parallel::TensorParallel tp_;
};

class GptBlock : public GptPart {
 public:
  GptBlock(const GptOptions& options, const parallel::TensorParallel& tp,
           const parallel::ContextParallel& cp = {}, const parallel::ExpertParallel& ep = {});
  at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {}) override;
  at::Tensor extend(const at::Tensor& x, parallel::AttentionCache& cache);

  std::shared_ptr<GptNorm> norm1, norm2;
  parallel::Attention attention{nullptr};
  std::shared_ptr<GptMlp> mlp;                  // Null with experts.
  parallel::MixtureOfExperts experts{nullptr};  // Null without experts.

 private:
  at::Tensor attend(const at::Tensor& x, const at::Tensor& documents);
  at::Tensor feed_forward(const at::Tensor& x);

  bool lets_norms_go_ = false;
  parallel::Dropout dropout_;
};

// Norm and projection to this rank's part of the vocabulary: [batch, sequence, width] -> logits
// [batch, whole sequence, columns]. The columns of all ranks are the vocabulary and its padding.
class GptHead : public GptPart {
 public:
  // Uses the weight of `tied`, or has its own weight if `tied` is null.
  GptHead(const GptOptions& options, parallel::Embedding tied, const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {}) override;

  std::shared_ptr<GptNorm> norm;
  parallel::Linear output{nullptr};  // Null if tied.

 private:
  GptOptions options_;
  parallel::TensorParallel tp_;
  parallel::Embedding tied_;  // Not a child, so that its parameter counts once.
};

// Keys and values of the tokens that a model has seen. Each rank has those of its heads: 2 · layers
// · batch · length · kv_heads · head_width / ranks numbers, and allocates at most twice as many.
// Use one cache with one model. It is empty at first. A copy may be extended by itself.
struct GptCache {
  std::vector<parallel::AttentionCache> blocks;

  std::int64_t length() const { return blocks.empty() ? 0 : blocks.front().length; }
};

// Tokens for which extend() returns logits.
enum class Wanted { kAll, kLast };

class GptImpl : public torch::nn::Module {
 public:
  // Throws Error(kInvalidArgument) for invalid sizes; sizes that do not divide by the ranks (naming
  // the nearest); experts with the sequence over ranks of tp. All ranks of cp use one seed for the
  // model and one for dropout (TensorParallel::seed_dropout). Experts are divided over `ep`: its
  // ranks have samples of their own and equal seeds; its batch includes the ranks of cp.
  GptImpl(const GptOptions& options_, const parallel::TensorParallel& tp_,
          const parallel::ContextParallel& cp_ = {}, const parallel::ExpertParallel& ep_ = {});
  // tokens: int64 [batch, sequence], whole and the same on all ranks of tp and cp. Returns this
  // rank's logits (GptHead) of its part of the positions. Collective, also in backward.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& documents = {});
  // forward() for tokens that follow those in the cache, without gradient; adds them to the cache.
  // int64 [batch, new] -> this rank's logits [batch, new, columns], or [batch, 1, columns] of the
  // last. Logits are those of forward() over all tokens, except for rounding. Collective. Throws
  // Error(kInvalidArgument) for more tokens than learned positions, for a capacity of experts (a
  // share of the whole sequence), and as Attention::extend(); discard the cache then.
  at::Tensor extend(const at::Tensor& tokens, GptCache& cache, Wanted wanted = Wanted::kAll);
  // Mean cross-entropy of `targets` (int64 [batch, sequence], whole; -100 does not count) under
  // forward's logits. A scalar, the same on all ranks of tp and cp. While training it includes the
  // auxiliary losses of the last forward (GptPart::auxiliary); over cp, their mean weighted by
  // positions. With experts, a rank without rows also runs forward and backward, on tokens of shape
  // [0, sequence]; its loss is 0.
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) const;
  // Embedding, blocks, head, in order.
  const std::vector<std::shared_ptr<GptPart>>& parts() const { return parts_; }

  GptOptions options;
  parallel::TensorParallel tp;
  parallel::ContextParallel cp;
  parallel::ExpertParallel ep;
  // Children "embedding", "blocks.0" …, "head".
  std::shared_ptr<GptEmbedding> embedding;
  std::vector<std::shared_ptr<GptBlock>> blocks;
  std::shared_ptr<GptHead> head;

 private:
  std::vector<std::shared_ptr<GptPart>> parts_;
};
TORCH_MODULE(Gpt);

}  // namespace weft::models
