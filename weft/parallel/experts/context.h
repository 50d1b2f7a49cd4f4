// Expert parallelism: the ranks over which experts are divided, the load of each expert, and how
// gradients of a model with experts are joined.
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

// A cheap value to copy into every layer with experts. dp x ep ranks share a batch. Each has tokens
// of its own, and all weights except the experts'. A rank along ep has 1 / ep of the experts; ranks
// that differ along dp alone have the same experts. Ranks of cp (parallel/context), each with its
// part of every sequence, are like ranks of dp.
//
//   const ExpertParallel ep(mesh["ep"], mesh.along({"dp", "ep"}));
//   // with sequences over ranks: {"dp", "cp", "ep"}
class ExpertParallel {
 public:
  // One rank alone, with all experts, without communication.
  ExpertParallel() = default;
  // `ep` are the ranks that divide the experts. `batch` are all ranks that share a batch, over
  // which experts are balanced (MixtureOfExperts::auxiliary); if not given, it is `ep`. Not
  // collective.
  explicit ExpertParallel(Group ep, std::optional<Group> batch = {})
      : group_(std::move(ep)), batch_(std::move(batch)) {}

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  // Throws Error(kInvalidArgument) for one rank alone, which has no group.
  const Group& group() const;
  // Null if the batch's ranks are those of `ep`, or one rank.
  const Group* batch() const { return batch_ && batch_->size() > 1 ? &*batch_ : nullptr; }

 private:
  std::optional<Group> group_, batch_;
};

// Parameters below `root` that are divided over ep, by their full names
// ("blocks.0.experts.up_proj"). They are slices along their first dimension, whose size over all
// ranks is the number of experts. All other parameters are on every rank.
std::map<std::string, Slice> expert_slices(const torch::nn::Module& root);

// The tokens that each expert received in one forward pass.
struct ExpertLoad {
  std::vector<std::int64_t> wanted;  // Choices, by expert.
  // Choices over the capacity, by expert; they are part of `wanted`.
  std::vector<std::int64_t> dropped;
  std::int64_t tokens = 0;

  // Adds the load of the same experts. This load may still be empty.
  void add(const ExpertLoad& more);
  // Share of all choices that were dropped; 0 without choices.
  double dropped_share() const;
  // Choices of the most wanted expert over the mean; 1 without choices.
  double imbalance() const;
};

// Joins gradients by sums, in place; `batch` is dp x ep, `replicas` is dp. A parameter without a
// gradient counts as zeros and gets one. Collective: over each of the two groups, one all-reduce of
// all its gradients for each element type.
//
// Let L_r be the mean loss over rank r's n_r tokens, and N the tokens on all dp x ep ranks. Rank r
// runs backward of L_r · n_r / N. The gradient of the whole batch's mean loss is then
//
//   of experts          the sum over dp: backward has already brought the part of every ep rank's
//                       tokens to the expert
//   of all the rest     the sum over dp x ep
//
// If every rank has the same number of tokens and runs backward of L_r itself: the mean over dp,
// divided by ep, for experts; the mean over dp x ep for all the rest.
//
// With cp: n_r are the tokens of all its ranks. L_r is ContextParallel::mean() over them, whose
// gradient is cp times a rank's share. Run backward of L_r · n_r / (N · cp). The sums are over dp x
// cp and dp x cp x ep.
void sum_gradients(const torch::nn::Module& root, const Group& batch, const Group& replicas);

// As clip_grad_norm() of tensor parallelism, for experts that are divided too: every parameter of
// the whole model counts once. Call it after gradients are joined. Collective over tp and ep: one
// all-reduce of four numbers over each.
double clip_grad_norm(const torch::nn::Module& root, double max_norm, const ExpertParallel& ep,
                      const TensorParallel& tp);

}  // namespace weft::parallel
