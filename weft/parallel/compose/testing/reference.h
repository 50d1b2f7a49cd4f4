// The language model of tiny.h written with torch::nn alone, in one process: the known answer for
// the ranks. Its forward, loss and update do not use weft. Only the initial weights are given, by
// name.
#pragma once

#include <torch/nn/functional.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::parallel::internal::reference {

namespace nn = torch::nn;

struct Options {
  std::int64_t words = 1, width = 1;
  int bodies = 1;
  bool tied = true;          // the head multiplies by the embedding's weight
  bool attends = false;      // bodies have causal attention of two heads
  std::int64_t experts = 0;  // number of experts, two per token; 0: a plain MLP
  double capacity = 0;       // capacity factor of an expert (GShard); 0: no limit
  // Factors of the balance loss (Switch) and of the router z-loss (ST-MoE).
  double balance = 0, z = 0;
};

inline nn::Linear plain_linear(std::int64_t in, std::int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

// Causal, two heads, without biases: softmax(q k^T / sqrt(d)) v.
struct AttentionImpl : nn::Module {
  explicit AttentionImpl(std::int64_t width) {
    q = register_module("q_proj", plain_linear(width, width));
    k = register_module("k_proj", plain_linear(width, width));
    v = register_module("v_proj", plain_linear(width, width));
    o = register_module("o_proj", plain_linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    constexpr std::int64_t kHeads = 2;
    const std::int64_t batch = x.size(0), length = x.size(1), depth = x.size(2) / kHeads;
    const auto heads = [&](const at::Tensor& y) {
      return y.view({batch, length, kHeads, depth}).transpose(1, 2);
    };
    const at::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
    const at::Tensor scores = torch::matmul(heads(q(x)), heads(k(x)).transpose(2, 3)) /
                              std::sqrt(static_cast<double>(depth));
    const at::Tensor weights =
        scores.masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(-1);
    return o(torch::matmul(weights, heads(v(x))).transpose(1, 2).reshape(x.sizes()));
  }
  nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
};
TORCH_MODULE(Attention);

// Every expert computes every token. Tokens that the router did not choose, or that exceed the
// capacity, get the weight 0.
struct ExpertsImpl : nn::Module {
  explicit ExpertsImpl(const Options& how) : options(how) {
    router = register_module("router", plain_linear(how.width, how.experts));
    const std::int64_t hidden = 2 * how.width;
    gate = register_parameter("gate_proj", torch::zeros({how.experts, hidden, how.width}));
    up = register_parameter("up_proj", torch::zeros({how.experts, hidden, how.width}));
    down = register_parameter("down_proj", torch::zeros({how.experts, how.width, hidden}));
  }
  // x [sequences, tokens, width]; `auxiliary` receives the balance loss and the z-loss.
  at::Tensor forward(const at::Tensor& x, at::Tensor& auxiliary) {
    constexpr std::int64_t kChosen = 2;
    const at::Tensor logits = router(x);
    const auto [best, chosen] = logits.topk(kChosen, -1);
    const at::Tensor share = best.softmax(-1) * places(chosen.detach());
    at::Tensor y = torch::zeros_like(x);
    for (std::int64_t expert = 0; expert < options.experts; ++expert) {
      const at::Tensor weight = (share * chosen.eq(expert)).sum(-1, /*keepdim=*/true);
      const at::Tensor hidden =
          torch::silu(torch::matmul(x, gate[expert].t())) * torch::matmul(x, up[expert].t());
      y = y + weight * torch::matmul(hidden, down[expert].t());
    }
    const at::Tensor used = nn::functional::one_hot(chosen, options.experts)
                                .to(x.scalar_type())
                                .mean(c10::IntArrayRef{0, 1, 2});
    const at::Tensor balance = (used * logits.softmax(-1).mean(c10::IntArrayRef{0, 1})).sum() *
                               static_cast<double>(options.experts);
    auxiliary = options.balance * balance + options.z * logits.logsumexp(-1).square().mean();
    return y;
  }

  // 1 if a choice fits into the capacity of its expert: first choices before second ones, tokens in
  // their order (GShard, algorithm 1).
  at::Tensor places(const at::Tensor& chosen) const {
    at::Tensor kept = torch::ones(chosen.sizes());
    if (options.capacity == 0) return kept.to(router->weight.scalar_type());
    const std::int64_t tokens = chosen.size(1), choices = chosen.size(2);
    const double fair = options.capacity * static_cast<double>(choices * tokens) /
                        static_cast<double>(options.experts);
    const auto room = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(fair)));
    for (std::int64_t sequence = 0; sequence < chosen.size(0); ++sequence) {
      std::vector<std::int64_t> taken(static_cast<std::size_t>(options.experts), 0);
      for (std::int64_t choice = 0; choice < choices; ++choice) {
        for (std::int64_t token = 0; token < tokens; ++token) {
          const auto expert =
              static_cast<std::size_t>(chosen[sequence][token][choice].item<std::int64_t>());
          if (++taken[expert] > room) kept[sequence][token][choice] = 0;
        }
      }
    }
    return kept.to(router->weight.scalar_type());
  }

  Options options;
  nn::Linear router{nullptr};
  at::Tensor gate, up, down;
};
TORCH_MODULE(Experts);

struct BodyImpl : nn::Module {
  explicit BodyImpl(const Options& how) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({how.width})));
    if (how.attends) attention = register_module("attention", Attention(how.width));
    if (how.experts > 0) {
      experts = register_module("experts", Experts(how));
    } else {
      up = register_module("up", nn::Linear(how.width, 2 * how.width));
      down = register_module("down", nn::Linear(2 * how.width, how.width));
    }
  }
  // `auxiliary` receives the auxiliary loss of the experts, if there are experts.
  at::Tensor forward(at::Tensor x, at::Tensor& auxiliary) {
    if (attention) x = x + attention(x);
    return x + (experts ? experts->forward(norm(x), auxiliary) : down(torch::gelu(up(norm(x)))));
  }
  nn::LayerNorm norm{nullptr};
  Attention attention{nullptr};
  Experts experts{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Body);

class Model {
 public:
  // All weights of the model, by name. A tied head has no weight of its own.
  Model(const Options& how, const std::map<std::string, at::Tensor>& initial, at::ScalarType type)
      : tokens_(how.words, how.width),
        norm_(nn::LayerNormOptions({how.width})),
        head_(plain_linear(how.width, how.words)) {
    add("words.tokens", *tokens_);
    for (int i = 0; i < how.bodies; ++i) {
      bodies_.emplace_back(how);
      add("body." + std::to_string(i), *bodies_.back());
    }
    add("head.norm", *norm_);
    if (how.tied) {
      head_->weight = tokens_->weight;
    } else {
      add("head.tokens", *head_);
    }
    const torch::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters_)
      parameter.set_data(initial.at(name).detach().to(type).clone());
    TORCH_CHECK(initial.size() == parameters_.size(), "the reference has ", parameters_.size(),
                " parameters, the model ", initial.size());
  }

  // The mean loss of the batch: of each token's successor, plus the auxiliary loss of experts.
  at::Tensor loss(const at::Tensor& words, const at::Tensor& targets) {
    at::Tensor x = tokens_(words), added = torch::zeros({}, x.options());
    for (Body& body : bodies_) {
      at::Tensor auxiliary = torch::zeros({}, x.options());
      x = body->forward(x, auxiliary);
      added = added + auxiliary;
    }
    const at::Tensor logits = nn::functional::linear(norm_(x), head_->weight);
    return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten()) + added;
  }

  std::map<std::string, at::Tensor>& parameters() { return parameters_; }

 private:
  void add(const std::string& name, const nn::Module& module) {
    for (const auto& item : module.named_parameters())
      parameters_[name + "." + item.key()] = item.value();
  }

  nn::Embedding tokens_;
  std::vector<Body> bodies_;
  nn::LayerNorm norm_;
  nn::Linear head_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace weft::parallel::internal::reference
