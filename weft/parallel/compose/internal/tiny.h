// Tests' helpers: a small language model as blocks, trained by torch in one process and by ranks under a plan.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "weft/comm/fork_ranks.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/tensor/dropout.h"
#include "weft/parallel/tensor/linear.h"
#include "weft/parallel/tensor/norm.h"
#include "weft/parallel/tensor/vocabulary.h"

namespace weft::parallel::internal {

constexpr std::int64_t kWords = 12, kLength = 3, kSamples = 11;
constexpr int kSteps = 5;
constexpr std::uint64_t kSeed = 7;

struct Tiny {
  at::ScalarType type = at::kDouble;
  int bodies = 3;
  double dropout = 0;
  double clip = 0;
  std::int64_t width = 8;
  bool tied = true;
};

struct WordsImpl : torch::nn::Module {
  WordsImpl(const Tiny& how, const TensorParallel& tp) {
    tokens = register_module("tokens", Embedding(EmbeddingOptions{.vocabulary = kWords, .features = how.width}, tp));
  }
  at::Tensor forward(const at::Tensor& x) { return tokens(x); }
  Embedding tokens{nullptr};
};
TORCH_MODULE(Words);

struct BodyImpl : torch::nn::Module {
  BodyImpl(const Tiny& how, const TensorParallel& tp) {
    norm = register_module("norm", LayerNorm(NormOptions{.features = how.width}, tp));
    up = register_module("up", Linear(LinearOptions{.in = how.width, .out = 2 * how.width, .split = Split::kColumn}, tp));
    down = register_module("down", Linear(LinearOptions{.in = 2 * how.width, .out = how.width, .split = Split::kRow}, tp));
    drop = register_module("drop", Dropout(DropoutOptions{.p = how.dropout}, tp));
  }
  at::Tensor forward(const at::Tensor& x) { return x + drop(down(torch::gelu(up(norm(x))))); }
  LayerNorm norm{nullptr};
  Linear up{nullptr}, down{nullptr};
  Dropout drop{nullptr};
};
TORCH_MODULE(Body);

// Logits by the embedding's weight: that of the first block where it is in the same stage, else a copy.
struct HeadImpl : torch::nn::Module {
  HeadImpl(const Tiny& how, const Contexts& with) : tp(with.tp) {
    norm = register_module("norm", LayerNorm(NormOptions{.features = how.width}, tp));
    const auto first = with.before.find("words");
    const bool here = how.tied && first != with.before.end();
    tokens = here ? std::dynamic_pointer_cast<WordsImpl>(first->second)->tokens
                  : Embedding(EmbeddingOptions{.vocabulary = kWords, .features = how.width}, tp);
    register_module("tokens", tokens);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(enter_split(norm(x), Sequence::kWhole, tp), tokens->weight); }
  TensorParallel tp;
  LayerNorm norm{nullptr};
  Embedding tokens{nullptr};
};
TORCH_MODULE(Head);

inline BlockModel tiny_model(const Tiny& how) {
  BlockModel model;
  model.blocks.push_back({"words", [how](const Contexts& with) {
                            Words words(how, with.tp);
                            words->to(how.type);
                            ModelBlock block = model_block(words);
                            if (how.tied) block.tied["words.tokens.weight"] = words->tokens->weight;
                            return block;
                          }});
  for (int i = 0; i < how.bodies; ++i) {
    model.blocks.push_back({"body." + std::to_string(i), [how](const Contexts& with) {
                              Body body(how, with.tp);
                              body->to(how.type);
                              return model_block(body);
                            }});
  }
  model.blocks.push_back({"head", [how](const Contexts& with) {
                            Head head(how, with);
                            head->to(how.type);
                            ModelBlock block = model_block(head);
                            if (how.tied && head->named_children().contains("tokens"))
                              block.tied["words.tokens.weight"] = head->tokens->weight;
                            return block;
                          }});
  // The second target, where there is one, multiplies the loss.
  model.loss = [](const Tensors& y, const Tensors& t, const Contexts& with) {
    const at::Tensor loss = cross_entropy(y[0], t[0], {.vocabulary = kWords}, with.tp);
    return t.size() > 1 ? loss * t[1].mean() : loss;
  };
  model.splits = {{"hidden", 2 * how.width}};
  return model;
}

inline at::Tensor tokens_of(int step, int shift) {
  const at::Tensor at = torch::arange(kSamples * kLength, at::kLong) + shift;
  return ((at * at + 5 * step + at) % kWords).view({kSamples, kLength});
}

// A replica's rows of the batch.
inline at::Tensor share_of(const at::Tensor& all, int replica, int replicas) {
  return all.slice(0, all.size(0) * replica / replicas, all.size(0) * (replica + 1) / replicas);
}

using Named = std::map<std::string, at::Tensor>;
struct Trained {
  std::vector<double> losses, norms;
  Named gradients, weights;
};

// By torch alone, in one process, on the joined batch.
template <class TorchOptimizer, class Options>
Trained by_torch(const Tiny& how, const Options& options) {
  const BlockModel model = tiny_model(how);
  Contexts with;
  std::vector<ModelBlock> blocks;
  Trained trained;
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    torch::manual_seed(block_seed(kSeed, static_cast<int>(i)));
    blocks.push_back(model.blocks[i].make(with));
    with.before[model.blocks[i].name] = blocks.back().module;
    for (const auto& item : blocks.back().module->named_parameters()) {
      if (how.tied && item.value().is_same(all.empty() ? at::Tensor() : all[0])) continue;  // the head's
      trained.weights[model.blocks[i].name + "." + item.key()] = item.value();
      all.push_back(item.value());
    }
  }
  TorchOptimizer optim(all, options);
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    Tensors x{tokens_of(step, 0)};
    for (const ModelBlock& block : blocks) x = block.forward(x);
    const at::Tensor loss = model.loss(x, {tokens_of(step, 1)}, with);
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    trained.norms.push_back(torch::nn::utils::clip_grad_norm_(all, how.clip > 0 ? how.clip : 1e30));
    optim.step();
  }
  for (auto& [name, weight] : trained.weights) {
    trained.gradients[name] = weight.grad().clone();
    weight = weight.detach().clone();
  }
  return trained;
}

// One step of a rank; gives the loss.
inline double train(ParallelModel& model, const Mesh& mesh, int step) {
  const int replica = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp"), replicas = mesh.size("dp") * mesh.size("fsdp");
  model.zero_grad();
  return model.train_step({share_of(tokens_of(step, 0), replica, replicas)}, {share_of(tokens_of(step, 1), replica, replicas)});
}

inline void expect_close(const Named& actual, const Named& expected, double most, const std::string& what) {
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(actual.count(name), 1U) << what << ": no " << name;
    const at::Tensor& mine = actual.at(name);
    ASSERT_EQ(mine.sizes(), tensor.sizes()) << what << ": " << name;
    EXPECT_TRUE(at::allclose(mine, tensor, most, most)) << what << ": " << name << " by " << (mine - tensor).abs().max().item<double>();
  }
}

inline void expect_same_bits(const Named& a, const Named& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << what << ": " << name;
}

inline Named named(const ParallelModel::NamedTensors& tensors) { return {tensors.begin(), tensors.end()}; }

}  // namespace weft::parallel::internal
