// A layer of experts in the place of a transformer's MLP (GShard; Switch): a router sends each token to the top_k of them, each an MLP of
// its own, and the results are summed by the router's weights. A token whose choices were all dropped gets zeros: what surrounds the
// layer (x + mixture(x)) passes it on.
//
//   x ─┬─ router ─────────────────────── weights ─┐
//      └─ send ─ experts of this rank ─ combine ──┴─ y            send and combine: all-to-alls
//
// With tensor parallelism around it each expert's MLP is split as well (hidden / ranks of tp): one all-reduce of y forward, and backward
// one of x and one of the weights [tokens, top_k], over tp. The ranks of one tp group see the same x and send the same rows, each in the ep
// group of its place.
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
  kSwiglu,  // down(silu(gate x) · up x), as Mixtral's
};

struct MixtureOptions {
  RouterOptions router;     // width and experts are the layer's
  std::int64_t hidden = 1;  // of each expert's MLP
  ExpertActivation activation = ExpertActivation::kSwiglu;
  double balance = 0.01;              // the balance loss's part in auxiliary(); Mixtral's router_aux_loss_coef · top_k
  double z = 0;                       // the router z-loss's (ST-MoE: 0.001)
  double normal = 0, normal_out = 0;  // initial values of gate and up, of down: RouterOptions::normal
};

// Child router (weight [experts, width]); parameters up_proj and, for SwiGLU, gate_proj [experts / ep, hidden / tp, width], down_proj
// [experts / ep, width, hidden / tp]: experts rank · experts / ep and on. No biases. One matrix product for each expert of the rank.
class MixtureOfExpertsImpl : public torch::nn::Cloneable<MixtureOfExpertsImpl>, public SplitModule {
 public:
  // All ranks of ep and tp start `tp` from the same seed: each draws all experts, one after the other, and keeps its own. Throws
  // Error(kInvalidArgument) where experts do not divide by the ranks of ep, or hidden by those of tp, naming the nearest that do, and as
  // Router does. Over ranks of `cp` each has its positions of every sequence, for the experts tokens like any others: `ep` says with whom.
  MixtureOfExpertsImpl(MixtureOptions options_, ExpertParallel ep, TensorParallel tp = {}, ContextParallel cp = {});
  void reset() override;
  // x [..., tokens, width] of this rank, perhaps of no tokens -> the same. Collective over ep (and tp), backward too; while training, with
  // a batch of more ranks than ep, one all-reduce of 2 experts + 1 counts over it. Throws what Group's operations throw.
  at::Tensor forward(const at::Tensor& x);

  // What the loss of this rank's last forward adds, a scalar with gradient; undefined in evaluation:
  //   balance · experts · sum over i of f_i P_i  +  z · mean of log(sum of exp(logits))²
  // f_i: the share of all choices (of the batch's ranks) that were for expert i, before any was dropped; P_i: its mean probability over
  // this rank's tokens (Switch, eq. 4 to 6; 1 where experts are used alike). Weighted by tokens over the ranks of the batch it is the
  // whole batch's, as a mean loss is. 0 on a rank without tokens.
  const at::Tensor& auxiliary() const { return auxiliary_; }
  // Of the last forward: over the batch's ranks while training, over ep's in evaluation.
  const ExpertLoad& load() const { return load_; }
  // Summed over the forwards while training since the last call, those that recomputation makes too.
  ExpertLoad take_sum() { return std::exchange(sum_, {}); }
  // How parameters lie over tp. Over ep: expert_slices() (context.h).
  std::map<std::string, Slice> slices() const override;

  MixtureOptions options;
  Router router{nullptr};
  at::Tensor gate_proj, up_proj, down_proj;  // gate_proj: undefined without a gate

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

// The loads below `root`, by the layers' full names, for metrics.
std::map<std::string, ExpertLoad> expert_loads(const torch::nn::Module& root);
// take_sum() of each.
std::map<std::string, ExpertLoad> take_expert_loads(torch::nn::Module& root);

}  // namespace weft::parallel
