// Over which ranks experts are divided, what each of them gets, and how gradients of a model with
// experts are joined.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/parallel/tensor/context.h"

namespace torch::nn {
class Module;
}

namespace weft::parallel {

// A cheap value, copied into every layer with experts. A batch is shared by dp x ep ranks: each has tokens of its own, and all weights
// but the experts', of which a rank along ep has 1 / ep (ranks that differ along dp alone have the same). Ranks of cp (parallel/context),
// each with its part of every sequence, are as those of dp.
//
//   const ExpertParallel ep(mesh["ep"], mesh.along({"dp", "ep"}));          // with sequences over ranks: {"dp", "cp", "ep"}
class ExpertParallel {
 public:
  // Alone: all experts are here, at no cost.
  ExpertParallel() = default;
  // `batch`: all ranks that share a batch, over which experts are to be used alike (MixtureOfExperts::auxiliary); `ep` where not given.
  // Not collective.
  explicit ExpertParallel(Group ep, std::optional<Group> batch = {}) : group_(std::move(ep)), batch_(std::move(batch)) {}

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  // Throws Error(kInvalidArgument) where there is none (alone).
  const Group& group() const;
  // Null where it is that of the experts, or one rank.
  const Group* batch() const { return batch_ && batch_->size() > 1 ? &*batch_ : nullptr; }

 private:
  std::optional<Group> group_, batch_;
};

// The parameters below `root` that lie on one rank along ep alone, by their full names ("blocks.0.experts.up_proj"): slices along their
// first dimension, whose size over all ranks is the number of experts. All others are on every rank.
std::map<std::string, Slice> expert_slices(const torch::nn::Module& root);

// The tokens that each expert received in one forward pass.
struct ExpertLoad {
  std::vector<std::int64_t> wanted;   // choices by expert
  std::vector<std::int64_t> dropped;  // of those, over the capacity
  std::int64_t tokens = 0;

  void add(const ExpertLoad& more);  // of the same experts, or of none yet
  double dropped_share() const;      // of all choices; 0 where there are none
  double imbalance() const;          // the most wanted expert's choices over the mean; 1 where there are none
};

// How gradients are joined. With L_r the mean loss over rank r's n_r tokens, and N tokens on all dp x ep ranks, rank r runs backward of
// L_r · n_r / N. Then the gradient of the whole batch's mean loss is
//
//   of experts        the sum over dp: backward has brought every ep rank's tokens' part to the expert already
//   of all the rest   the sum over dp x ep
//
// Where every rank has as many tokens and runs backward of L_r as it is: the mean over dp, divided by ep; the mean over dp x ep.
//
// With cp, n_r tokens of all its ranks, and L_r ContextParallel::mean() over them, whose gradient is cp times a rank's share: backward of
// L_r · n_r / (N · cp), and the sums are over dp x cp and dp x cp x ep.
//
// Sums in place: `batch` is dp x ep, `replicas` dp. A parameter without gradient counts as zeros, and ends with one. Collective: one
// all-reduce over each of the two groups for each type of numbers, of all gradients of that kind.
void sum_gradients(const torch::nn::Module& root, const Group& batch, const Group& replicas);

// clip_grad_norm() of tensor parallelism, where experts are divided as well: every parameter of the whole model counts once.
// Collective over both groups (one all-reduce of four numbers over each), after gradients are joined.
double clip_grad_norm(const torch::nn::Module& root, double max_norm, const ExpertParallel& ep, const TensorParallel& tp);

}  // namespace weft::parallel
