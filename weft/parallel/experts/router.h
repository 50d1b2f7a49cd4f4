// Which experts a token goes to, and with which weights (Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
// Mixture-of-Experts Layer", 2017; Fedus, Zoph, Shazeer, "Switch Transformers", 2021; Lepikhin et al., "GShard", 2020).
//
//   x [..., tokens, width] ─ logits = x W^T [..., tokens, experts] ─ top k ─ weights ─ capacity ─> Routing
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

// A token's weights for the experts that it goes to.
enum class RouterWeights {
  kOverChosen,  // softmax over the chosen logits: they sum to 1 (Shazeer et al. 2017, 2.1; GShard; Mixtral)
  kOverAll,     // softmax over all experts, of which the chosen ones' (Switch, 2.1)
};

struct RouterOptions {
  std::int64_t width = 1, experts = 1;
  std::int64_t top_k = 2;
  RouterWeights weights = RouterWeights::kOverChosen;  // top_k = 1 needs kOverAll: over one expert the weight is 1 whatever the router says
  // Above 0: of a group of t tokens, an expert takes ceil(capacity_factor · top_k · t / experts), at least one; what goes beyond is
  // dropped. First choices come before second ones, and tokens in their order (GShard, algorithm 1). A group is a sequence: the dimension
  // before the last, over all ranks that have parts of it. So what is dropped depends neither on the other sequences of a batch nor on how
  // they lie over ranks. 0: no limit.
  double capacity_factor = 0;
  double jitter = 0;  // training: the router sees x · uniform(1 - jitter, 1 + jitter), element by element (Switch, 2.2)
  double normal = 0;  // initial values N(0, normal²); 0: those of torch::nn::Linear
};

// n tokens: all leading dimensions of x as one.
struct Routing {
  at::Tensor experts;        // int64 [n, top_k]: choices, the best first; of equal logits the expert of the smaller number
  at::Tensor weights;        // [n, top_k], with gradient
  at::Tensor kept;           // bool [n, top_k]; undefined: all are
  at::Tensor probabilities;  // [n, experts]: softmax over all, with gradient
  at::Tensor z;              // [n]: log(sum of exp(logits))², with gradient (Zoph et al., "ST-MoE", 2022, eq. 5)
};

// From logits [..., tokens, experts]: float32 or float64, no NaN among them. O(n · (experts + top_k)) and the sorts. Over ranks of `cp`,
// whose tokens are this rank's positions, a capacity takes an all-gather of 4 top_k bytes a token. Throws Error(kInvalidArgument) as Router
// does.
Routing route(const at::Tensor& logits, const RouterOptions& options, const ContextParallel& cp = {});

// Parameter weight [experts, width], whole on every rank. Computed in float32 at least, under autocast too (Switch, 2.4).
class RouterImpl : public torch::nn::Cloneable<RouterImpl> {
 public:
  // Initial values and jitter come from `tp`; ranks with other samples give it another seed_dropout() where they want other jitter. Over
  // ranks of `cp`, which have equal seeds, x has this rank's positions: jitter is that of one process, at an all-gather of 8 bytes. Throws
  // Error(kInvalidArgument) for top_k outside 1 … experts, for kOverChosen with one expert a token, and for a negative or huge factor.
  RouterImpl(RouterOptions options_, TensorParallel tp, ContextParallel cp = {});
  void reset() override;
  // x [..., tokens, width]. Local, but for jitter and capacity over cp.
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
