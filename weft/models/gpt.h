// Decoder-only transformers: GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), Llama (Touvron et al.
// 2023) and what lies between, by options. Written with the layers of parallel/tensor: split over a group's ranks, or plain in a group of
// one.
//
//   tokens ─ embedding ─ block 0 ─ … ─ block n-1 ─ head ─ logits          block:  x + attention(norm1(x)), then x + mlp(norm2(x))
//
// A model is a list of parts, each a module from tensor to tensor, so that pipelines, sharding and recomputation can take them one by one.
//
// A rank hands over, in a step without split sequence, an all-reduce of an activation [batch, sequence, width] 1 + 2 layers times forward
// and 1 + 2 layers times backward, and the cross-entropy's three numbers a token (parallel/tensor/vocabulary.h). Blocks of experts: and
// what parallel/experts says.
//
// With a ContextParallel of several ranks each has its part of the positions all the way from embedding to logits; attention alone
// communicates over it (parallel/context/attention.h), and the loss. context_parallel.h says what becomes of gradients.
//
// What a block keeps for its backward, plan/activations.h says tensor by tensor; options.selective and parallel/recompute make it less.
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
  kGeluTanh,  // its approximation by tanh, GPT-2's
  kSwiglu,    // silu(gate) · up (Shazeer, "GLU Variants Improve Transformer", 2020)
};

// GPT-2's smallest model unless set.
struct GptOptions {
  std::int64_t vocabulary = 50257;  // padded where it does not divide by the ranks
  std::int64_t layers = 12, width = 768, heads = 12;
  std::int64_t kv_heads = 0;            // 0: as many as heads
  std::int64_t head_width = 0;          // 0: width / heads
  std::int64_t hidden = 0;              // of the MLP; 0: 4 · width
  std::int64_t sequence_length = 1024;  // at most, with learned positions
  Norm norm = Norm::kLayerNorm;
  double norm_eps = 1e-5;
  Positions positions = Positions::kLearned;
  double rope_theta = 10000;
  parallel::RopeScaling rope_scaling;
  Activation activation = Activation::kGeluTanh;
  bool bias = true;             // of linear layers and LayerNorms
  bool attention_bias = false;  // of attention's linear layers where the others have none
  bool tied = true;             // the head's weight is the embedding's
  double dropout = 0;           // after the embedding, on attention weights, on what each half of a block adds
  // N(0, std²) for weights, and std / sqrt(2 layers) for those whose output is added to the block's input (GPT-2, 2.3); 0: libtorch's own.
  double initial_std = 0.02;
  int chunks = 1;                                            // of products that are summed over ranks: parallel::LinearOptions::chunks
  parallel::Sequence sequence = parallel::Sequence::kWhole;  // kSplit: between the split layers each rank has a part of the sequence
  // Selective recomputation, of what is large and cheap (Korthikanti et al. 2022, 5): scores, softmax and masks of attention with dropout,
  // the norms' results and the MLP's activation are computed again in backward. No product of a weight is, nothing more is sent, and the
  // numbers are the same bits. In float32 without dropout a block of GPT-2's keeps 10 in place of 16 times batch · sequence · width.
  // Norms' results stay where the sequence is split; of experts nothing goes.
  bool selective = false;
  // Above 0: in place of each block's MLP so many, of which each token goes to experts_top_k (parallel/experts), without biases. Weights:
  // over the chosen, as Mixtral; with one a token over all, as Switch. Needs sequence = kWhole.
  std::int64_t experts = 0;
  std::int64_t experts_top_k = 2;
  double experts_capacity = 0;    // RouterOptions::capacity_factor; 0: no token is dropped
  double experts_balance = 0.01;  // of the balance loss, in loss()
  double experts_z = 0;           // of the router z-loss
  double experts_jitter = 0;
};

// The sizes of `options` with Llama's norm, positions, activation and lack of biases.
GptOptions like_llama(GptOptions options);

// One step of the way from tokens to logits. `documents`, where given, says which document each position belongs to (int64 [batch,
// sequence]): positions then see their own document only, and learned positions count from its start; equal numbers are neighbours.
class GptPart : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {}) = 0;
  // What the last forward adds to the loss, with gradient (parallel::MixtureOfExperts::auxiliary); undefined where nothing. Where forward
  // is wrapped in recompute(), this is its second result, given back by set_auxiliary(): Gpt::loss() would take the first run's else, from
  // which no gradient reaches the parts before. In a pipeline it goes along from stage to stage, and is added to the last one's loss.
  const at::Tensor& auxiliary() const { return auxiliary_; }
  void set_auxiliary(const at::Tensor& auxiliary) { auxiliary_ = auxiliary; }

 protected:
  at::Tensor auxiliary_;
};

// int64 [batch, whole sequence] -> [batch, this rank's positions, width].
class GptEmbedding : public GptPart {
 public:
  GptEmbedding(const GptOptions& options, const parallel::TensorParallel& tp, const parallel::ContextParallel& cp = {});
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& documents = {}) override;
  // Of tokens at positions `first` and on.
  at::Tensor extend(const at::Tensor& tokens, std::int64_t first);

  parallel::Embedding tokens{nullptr};
  at::Tensor positions;  // [sequence_length, width], whole on every rank; undefined where they are rotary

 private:
  at::Tensor places_of(std::int64_t sequence, const at::Tensor& documents) const;

  GptOptions options_;
  parallel::TensorParallel tp_;
  parallel::ContextParallel cp_;
  parallel::Dropout dropout_;
};

// A norm by option: parameters weight and perhaps bias.
class GptNorm : public torch::nn::Module {
 public:
  GptNorm(const GptOptions& options, const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;

 private:
  parallel::LayerNorm layer_{nullptr};
  parallel::RMSNorm rms_{nullptr};
};

// The feed-forward half of a block: down_proj(activation(up_proj(x))), or down_proj(silu(gate_proj(x)) · up_proj(x)).
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
  GptBlock(const GptOptions& options, const parallel::TensorParallel& tp, const parallel::ContextParallel& cp = {},
           const parallel::ExpertParallel& ep = {});
  at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {}) override;
  at::Tensor extend(const at::Tensor& x, parallel::AttentionCache& cache);

  std::shared_ptr<GptNorm> norm1, norm2;
  parallel::Attention attention{nullptr};
  std::shared_ptr<GptMlp> mlp;                  // null where there are experts
  parallel::MixtureOfExperts experts{nullptr};  // null where there are none

 private:
  at::Tensor attend(const at::Tensor& x, const at::Tensor& documents);
  at::Tensor feed_forward(const at::Tensor& x);

  bool lets_norms_go_ = false;
  parallel::Dropout dropout_;
};

// Norm and projection to this rank's part of the vocabulary: [batch, sequence, width] -> logits [batch, whole sequence, columns], where the
// columns of all ranks together are the vocabulary and its padding.
class GptHead : public GptPart {
 public:
  // Tied to the embedding where there is one, else with a weight of its own.
  GptHead(const GptOptions& options, parallel::Embedding tied, const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& documents = {}) override;

  std::shared_ptr<GptNorm> norm;
  parallel::Linear output{nullptr};  // null where it is tied

 private:
  GptOptions options_;
  parallel::TensorParallel tp_;
  parallel::Embedding tied_;  // not a child: its parameter is counted once
};

// What a model keeps of the tokens that it has seen, on each rank for its heads: 2 · layers · batch · length · kv_heads · head_width /
// ranks numbers (and up to twice the room). For one model; empty at first.
struct GptCache {
  std::vector<parallel::AttentionCache> blocks;

  std::int64_t length() const { return blocks.empty() ? 0 : blocks.front().length; }
};

// Of which of the tokens extend() gives the logits.
enum class Wanted { kAll, kLast };

class GptImpl : public torch::nn::Module {
 public:
  // Throws Error(kInvalidArgument) for sizes that make no model or do not divide by the ranks, naming the nearest that do, and for experts
  // with the sequence over ranks of tp. All ranks of cp make it from one seed, and drop by one (TensorParallel::seed_dropout). Experts are
  // divided over `ep`: its ranks have samples of their own, and equal seeds; its batch has the ranks of cp too.
  GptImpl(const GptOptions& options_, const parallel::TensorParallel& tp_, const parallel::ContextParallel& cp_ = {},
          const parallel::ExpertParallel& ep_ = {});
  // tokens int64 [batch, sequence], whole and the same on all ranks of tp and cp -> this rank's logits (GptHead), of its part of the
  // positions. Collective, backward too.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& documents = {});
  // forward() of tokens that follow those that the cache holds, and puts them there: int64 [batch, new] -> this rank's logits [batch, new,
  // columns], or [batch, 1, columns] of the last. What forward() of all tokens gives at these positions, but for rounding. Without
  // gradient; collective. Throws Error(kInvalidArgument) for more tokens than learned positions, and as Attention::extend(); then the cache
  // is to be thrown away.
  at::Tensor extend(const at::Tensor& tokens, GptCache& cache, Wanted wanted = Wanted::kAll);
  // The mean cross-entropy of `targets` (int64 [batch, sequence], whole; -100 does not count) under forward's logits; a scalar, the same on
  // all ranks of tp and cp. While training plus what the blocks' experts add (GptPart::auxiliary), of the last forward, over cp its mean by
  // positions. With experts a rank without rows runs forward and backward as well, of [0, sequence]: its loss is 0.
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
