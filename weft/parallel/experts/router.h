// Router: chooses the experts of each token, and their weights (Shazeer et al., "Outrageously Large
// Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017; Fedus, Zoph, Shazeer,
// "Switch Transformers", 2021; Lepikhin et al., "GShard", 2020).
//
//   x [..., tokens, width] ─ logits = x W^T [..., tokens, experts] ─ top k ─ weights ─ capacity
//       ─> Routing
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

// Weights of a token's chosen experts.
enum class RouterWeights {
  // Softmax over the chosen logits; the weights sum to 1 (Shazeer et al. 2017, 2.1; GShard;
  // Mixtral).
  kOverChosen,
  // Softmax over all experts; the weights are those of the chosen ones (Switch, 2.1).
  kOverAll,
};

struct RouterOptions {
  std::int64_t width = 1, experts = 1;
  std::int64_t top_k = 2;
  // top_k = 1 needs kOverAll: over one expert, kOverChosen always gives the weight 1.
  RouterWeights weights = RouterWeights::kOverChosen;
  // Above 0: capacity of an expert. Of a group of t tokens it takes ceil(capacity_factor · top_k ·
  // t / experts), at least one; further tokens are dropped. First choices come before second ones,
  // and tokens in their order (GShard, algorithm 1). A group is a sequence: the dimension before
  // the last, over all ranks that have parts of it. So drops depend neither on the other sequences
  // of a batch nor on how they lie over ranks. 0: no limit.
  double capacity_factor = 0;
  // Noise while training: the router sees x · uniform(1 - jitter, 1 + jitter), element by element
  // (Switch, 2.2).
  double jitter = 0;
  // Initial values N(0, normal²). 0: those of torch::nn::Linear.
  double normal = 0;
};

// Choices of a router for n tokens: all leading dimensions of x as one.
struct Routing {
  // int64 [n, top_k]: choices, the best first. Of equal logits, the expert with the smaller number
  // comes first.
  at::Tensor experts;
  // [n, top_k], with gradient.
  at::Tensor weights;
  // bool [n, top_k]: choices within capacity. Undefined: all are.
  at::Tensor kept;
  // [n, experts]: softmax over all experts, with gradient.
  at::Tensor probabilities;
  // [n]: log(sum of exp(logits))², with gradient (Zoph et al., "ST-MoE", 2022, eq. 5).
  at::Tensor z;
};

// Chooses experts by logits [..., tokens, experts], float32 or float64 without NaN. O(n · (experts
// + top_k)) and the sorts. Over ranks of `cp`, whose tokens are this rank's positions, a capacity
// needs an all-gather of 4 top_k bytes per token. Throws Error(kInvalidArgument) as Router does.
Routing route(const at::Tensor& logits, const RouterOptions& options,
              const ContextParallel& cp = {});

// Layer that computes the logits and routes. Parameter weight [experts, width], whole on every
// rank. Computes in float32 at least, also under autocast (Switch, 2.4).
class RouterImpl : public torch::nn::Cloneable<RouterImpl> {
 public:
  // `tp` gives initial values and jitter. Ranks with other samples call its seed_dropout() with
  // another seed if their jitter should differ. Over ranks of `cp`, which have equal seeds, x has
  // this rank's positions. Jitter is then that of one process, at an all-gather of 8 bytes. Throws
  // Error(kInvalidArgument) for top_k outside 1 … experts, for kOverChosen with one expert per
  // token, and for a negative or infinite factor.
  RouterImpl(RouterOptions options_, TensorParallel tp, ContextParallel cp = {});
  void reset() override;
  // x: [..., tokens, width]. Does not communicate, except for jitter and capacity over cp.
  Routing forward(const at::Tensor& x);

  RouterOptions options;
  at::Tensor weight;

 private:
  at::Tensor jittered(const at::Tensor& x) const;

  TensorParallel tp_;
  ContextParallel cp_;
};
TORCH_MODULE(Router);

}  // namespace weft::parallel
