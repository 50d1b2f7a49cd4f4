// MixtureOfExperts: a layer of experts in place of a transformer's MLP (GShard; Switch).
//
// A router sends each token to top_k experts, each an MLP of its own. The results are summed by the
// router's weights. A token whose choices were all dropped gets zeros, and the residual around the
// layer (x + mixture(x)) passes it on.
//
//   x ─┬─ router ─────────────────────── weights ─┐
//      └─ send ─ experts of this rank ─ combine ──┴─ y      send and combine: all-to-alls
//
// With tensor parallelism each expert's MLP is split as well (hidden / ranks of tp). Over tp this
// costs one all-reduce of y in forward, and in backward one of x and one of the weights [tokens,
// top_k]. The ranks of one tp group see the same x and send the same rows, each in its own ep
// group.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "weft/parallel/experts/context.h"
#include "weft/parallel/experts/router.h"

namespace weft::parallel {

enum class ExpertActivation {
  kGelu,
  kGeluTanh,
  kSwiglu,  // down(silu(gate x) · up x), as in Mixtral.
};

struct MixtureOptions {
  RouterOptions router;     // Options of the router, with the layer's width and experts.
  std::int64_t hidden = 1;  // Hidden size of each expert's MLP.
  ExpertActivation activation = ExpertActivation::kSwiglu;
  // Weight of the balance loss in auxiliary(); Mixtral's router_aux_loss_coef · top_k / layers.
  double balance = 0.01;
  double z = 0;  // Weight of the router z-loss in auxiliary() (ST-MoE: 0.001).
  // Initial values of gate and up, and of down, as in RouterOptions::normal.
  double normal = 0, normal_out = 0;
};

// Child: router (weight [experts, width]). Parameters, without biases: up_proj and, for SwiGLU,
// gate_proj [experts / ep, hidden / tp, width]; down_proj [experts / ep, width, hidden / tp]. This
// rank has experts / ep experts, from number rank · experts / ep on. One matrix product for each
// expert of the rank.
class MixtureOfExpertsImpl : public torch::nn::Cloneable<MixtureOfExpertsImpl>, public SplitModule {
 public:
  // All ranks of ep and tp start `tp` from the same seed: each draws all experts, one after the
  // other, and keeps its own. Over ranks of `cp`, each rank has its positions of every sequence,
  // which are tokens like any others for the experts; `ep` names the ranks that share the batch.
  // Throws Error(kInvalidArgument) if experts do not divide by the ranks of ep, or hidden by those
  // of tp, naming the nearest that do. Also throws as Router does.
  MixtureOfExpertsImpl(MixtureOptions options_, ExpertParallel ep, TensorParallel tp = {},
                       ContextParallel cp = {});
  void reset() override;
  // x: [..., tokens, width] of this rank, also without tokens. Returns the same shape. Collective
  // over ep (and tp), also in backward. While training, with a batch of more ranks than ep, one
  // all-reduce of 2 experts + 1 counts over the batch's ranks. Throws as Group's operations do.
  at::Tensor forward(const at::Tensor& x);

  // Auxiliary loss of this rank's last forward, a scalar with gradient; undefined in evaluation:
  //   balance · experts · sum over i of f_i P_i  +  z · mean of log(sum of exp(logits))²
  // f_i is the share of all choices of the batch's ranks that were for expert i, before drops. P_i
  // is expert i's mean probability over this rank's tokens (Switch, eq. 4 to 6). The sum is 1 where
  // experts are used alike. The average over the batch's ranks, weighted by tokens, is the
  // auxiliary loss of the whole batch, as for a mean loss. 0 on a rank without tokens.
  const at::Tensor& auxiliary() const { return auxiliary_; }
  // Returns auxiliary(), which is undefined from then on. Take it under recompute(): the loss keeps
  // the graph of the run, and with it the activations from which the router's input was computed.
  at::Tensor take_auxiliary() { return std::exchange(auxiliary_, {}); }
  // Load of the last forward: over the batch's ranks while training, over ep's ranks in evaluation.
  const ExpertLoad& load() const { return load_; }
  using torch::nn::Module::load;  // parameters from an archive of libtorch
  // Load summed over all forwards while training since the last call, also over those of
  // recomputation.
  ExpertLoad take_sum() { return std::exchange(sum_, {}); }
  // Slices of parameters over tp. expert_slices() has those over ep (context.h).
  std::map<std::string, Slice> slices() const override;

  MixtureOptions options;
  Router router{nullptr};
  at::Tensor gate_proj, up_proj, down_proj;  // gate_proj: undefined without a gate.

 private:
  at::Tensor compute(const at::Tensor& rows, const std::vector<std::int64_t>& counts) const;
  void count(const ExpertLoad& of_ep);
  at::Tensor losses(const Routing& routing) const;

  ExpertParallel ep_;
  TensorParallel tp_;
  ContextParallel cp_;
  at::Tensor auxiliary_;
  ExpertLoad load_, sum_;
};
TORCH_MODULE(MixtureOfExperts);

// Loads of the layers below `root`, by the layers' full names, for metrics.
std::map<std::string, ExpertLoad> expert_loads(const torch::nn::Module& root);
// take_sum() of each layer below `root`.
std::map<std::string, ExpertLoad> take_expert_loads(torch::nn::Module& root);

}  // namespace weft::parallel
