// Test helpers: a small language model as blocks, trained by ranks under a plan (by_torch.h: by
// torch::nn in one process).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <string>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/experts/mixture.h"
#include "weft/parallel/tensor/attention.h"
#include "weft/parallel/tensor/dropout.h"
#include "weft/parallel/tensor/linear.h"
#include "weft/parallel/tensor/norm.h"
#include "weft/parallel/tensor/vocabulary.h"

namespace weft::parallel::internal {

constexpr std::int64_t kWords = 12, kLength = 3, kSamples = 11;
constexpr int kSteps = 5;
constexpr std::uint64_t kSeed = 7;
constexpr double kBalance = 0.1, kZ = 0.02;  // factors of the experts' losses

// Values by a formula: the same on every rank and thread.
inline void fill(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (const auto& parameter : module.parameters())
    parameter.copy_(
        ((torch::arange(parameter.numel()) * 0.7 + ++phase).sin() * 0.5).view(parameter.sizes()));
}

struct Tiny {
  at::ScalarType type = at::kDouble;
  int bodies = 3;
  double dropout = 0;
  double clip = 0;
  std::int64_t width = 8;
  bool tied = true;
  std::int64_t length = kLength;
  bool attends = false;      // bodies look at earlier positions: two heads
  std::int64_t experts = 0;  // number of experts in bodies, two per token
  double capacity = 0;       // of experts
};

struct WordsImpl : torch::nn::Module {
  WordsImpl(const Tiny& how, const Contexts& with) : cp(with.cp) {
    tokens = register_module(
        "tokens",
        Embedding(EmbeddingOptions{.vocabulary = kWords, .features = how.width}, with.tp));
  }
  at::Tensor forward(const at::Tensor& x) { return tokens(cp.part(x, 1)); }
  ContextParallel cp;
  Embedding tokens{nullptr};
};
TORCH_MODULE(Words);

struct BodyImpl : torch::nn::Module {
  BodyImpl(const Tiny& how, const Contexts& with) {
    const TensorParallel& tp = with.tp;
    norm = register_module("norm", LayerNorm(NormOptions{.features = how.width}, tp));
    if (how.attends)
      attention = register_module(
          "attention",
          Attention(AttentionOptions{.width = how.width, .heads = 2, .bias = false}, tp, with.cp));
    if (how.experts > 0) {
      MixtureOptions mixture{.hidden = 2 * how.width, .balance = kBalance, .z = kZ};
      mixture.router = {
          .width = how.width, .experts = how.experts, .top_k = 2, .capacity_factor = how.capacity};
      experts = register_module("experts", MixtureOfExperts(mixture, with.ep, tp, with.cp));
    } else {
      up = register_module(
          "up",
          Linear(LinearOptions{.in = how.width, .out = 2 * how.width, .split = Split::kColumn},
                 tp));
      down = register_module(
          "down",
          Linear(LinearOptions{.in = 2 * how.width, .out = how.width, .split = Split::kRow}, tp));
    }
    drop = register_module("drop", Dropout(DropoutOptions{.p = how.dropout}, tp));
  }
  // The auxiliary loss of experts is passed on as the second tensor, [1].
  Tensors forward(Tensors given) {
    at::Tensor x = attention ? given[0] + attention(given[0]) : given[0];
    const at::Tensor y = experts ? experts(norm(x)) : down(torch::gelu(up(norm(x))));
    given[0] = x + drop(y);
    if (!experts || !experts->auxiliary().defined()) return given;
    if (given.size() > 1) return {given[0], given[1] + experts->auxiliary()};
    return {given[0], experts->auxiliary().reshape({1})};
  }
  LayerNorm norm{nullptr};
  Attention attention{nullptr};
  MixtureOfExperts experts{nullptr};
  Linear up{nullptr}, down{nullptr};
  Dropout drop{nullptr};
};
TORCH_MODULE(Body);

// Logits by the embedding's weight: the first block's weight if it is in the same stage, else a
// copy.
struct HeadImpl : torch::nn::Module {
  HeadImpl(const Tiny& how, const Contexts& with) : tp(with.tp) {
    norm = register_module("norm", LayerNorm(NormOptions{.features = how.width}, tp));
    const auto first = with.before.find("words");
    const bool here = how.tied && first != with.before.end();
    tokens = here ? std::dynamic_pointer_cast<WordsImpl>(first->second)->tokens
                  : Embedding(EmbeddingOptions{.vocabulary = kWords, .features = how.width}, tp);
    register_module("tokens", tokens);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::linear(enter_split(norm(x), Sequence::kWhole, tp), tokens->weight);
  }
  TensorParallel tp;
  LayerNorm norm{nullptr};
  Embedding tokens{nullptr};
};
TORCH_MODULE(Head);

// The loss over the whole sequence, in training plus the auxiliary loss of experts. A second
// target, if any, multiplies it.
inline at::Tensor tiny_loss(const Tensors& y, const Tensors& t, const Contexts& with) {
  at::Tensor loss;
  const at::Tensor mine = with.cp.part(t[0], 1);
  const bool joins = with.cp.size() > 1 && t[0].numel() > 0;
  if (joins) {
    loss = with.cp.mean(
        cross_entropy(y[0], mine, {.vocabulary = kWords, .reduction = LossReduction::kSum},
                      with.tp),
        mine.numel());
  } else {
    loss =
        t[0].numel() == 0 ? y[0].sum() : cross_entropy(y[0], t[0], {.vocabulary = kWords}, with.tp);
  }
  if (y.size() > 1)
    loss = loss + (joins ? with.cp.mean(y[1] * mine.numel(), mine.numel()) : y[1]).squeeze(0);
  return t.size() > 1 ? loss * t[1].mean() : loss;
}

inline BlockModel tiny_model(const Tiny& how) {
  BlockModel model;
  model.blocks.push_back({"words", [how](const Contexts& with) {
                            Words words(how, with);
                            words->to(how.type);
                            Block block = engine::block(words);
                            if (how.tied) block.tied["words.tokens.weight"] = words->tokens->weight;
                            return block;
                          }});
  for (int i = 0; i < how.bodies; ++i) {
    model.blocks.push_back({"body." + std::to_string(i), [how](const Contexts& with) {
                              Body body(how, with);
                              body->to(how.type);
                              return Block{
                                  .module = body.ptr(),
                                  .forward = [body](const Tensors& x) mutable { return body(x); }};
                            }});
  }
  model.blocks.push_back({"head", [how](const Contexts& with) {
                            Head head(how, with);
                            head->to(how.type);
                            Block block = engine::block(head);
                            if (how.tied && head->named_children().contains("tokens"))
                              block.tied["words.tokens.weight"] = head->tokens->weight;
                            return block;
                          }});
  model.loss = tiny_loss;
  model.join = [](Tensors y, const Contexts& with) {
    if (with.cp.size() > 1) y[0] = with.cp.whole(y[0], 1);
    return y;
  };
  model.splits = {{"hidden", 2 * how.width}};
  model.heads = how.attends ? 2 : 0;
  model.experts = how.experts;
  return model;
}

inline at::Tensor tokens_of(int step, int shift, std::int64_t length = kLength) {
  const at::Tensor at = torch::arange(kSamples * length, at::kLong) + shift;
  return ((at * at + 5 * step + at) % kWords).view({kSamples, length});
}

// A replica's rows of the batch.
inline at::Tensor share_of(const at::Tensor& all, int replica, int replicas) {
  return all.slice(0, all.size(0) * replica / replicas, all.size(0) * (replica + 1) / replicas);
}

// Division of a batch: experts are balanced over each micro-batch of all replicas.
struct Batches {
  int micro_batches = 1, replicas = 1;

  at::Tensor rows(const at::Tensor& all, int micro_batch) const {
    std::vector<at::Tensor> some;
    for (int replica = 0; replica < replicas; ++replica)
      some.push_back(share_of(all, replica, replicas)
                         .tensor_split(micro_batches, 0)[static_cast<std::size_t>(micro_batch)]);
    return torch::cat(some);
  }
};

using Named = std::map<std::string, at::Tensor>;
struct Trained {
  std::vector<double> losses, norms;
  Named gradients, weights;
};

// Runs one step of a rank. Returns the loss.
inline double train(ParallelModel& model, int step, std::int64_t length = kLength) {
  const auto share = [&](int shift) {
    return share_of(tokens_of(step, shift, length), model.replica(), model.replicas());
  };
  model.zero_grad();
  return model.train_step({share(0)}, {share(1)});
}

inline void expect_close(const Named& actual, const Named& expected, double most,
                         const std::string& what) {
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(actual.count(name), 1U) << what << ": no " << name;
    const at::Tensor& mine = actual.at(name);
    ASSERT_EQ(mine.sizes(), tensor.sizes()) << what << ": " << name;
    EXPECT_TRUE(at::allclose(mine, tensor, most, most))
        << what << ": " << name << " by " << (mine - tensor).abs().max().item<double>();
  }
}

inline void expect_same_bits(const Named& a, const Named& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << what << ": " << name;
}

inline Named named(const ParallelModel::NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace weft::parallel::internal
