#include "weft/parallel/experts/context.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "weft/base/error.h"
#include "weft/parallel/experts/mixture.h"
#include "weft/parallel/internal/clip.h"
#include "weft/parallel/internal/slices.h"

namespace weft::parallel {
namespace {

// Sums all gradients of one element type as one array.
void sum_flat(const std::vector<at::Tensor>& parameters, const Group& group) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    flat.push_back(parameter.grad().reshape({-1}));
  }
  at::Tensor all = at::cat(flat);
  group.all_reduce(all);
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.grad().copy_(all.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
}

// For clip_grad_norm: sums of squares of parameters that are [on every rank, split over tp, over
// ep, over both].
std::size_t kind_of(bool split, bool expert) { return (split ? 1 : 0) + (expert ? 2 : 0); }

}  // namespace

const Group& ExpertParallel::group() const {
  WEFT_REQUIRE(group_.has_value(),
               "ExpertParallel: made without a group; pass a group to the constructor");
  return *group_;
}

std::map<std::string, Slice> expert_slices(const torch::nn::Module& root) {
  return internal::slices_below(root, [](const torch::nn::Module& module) {
    std::map<std::string, Slice> own;
    const auto* const mixture = dynamic_cast<const MixtureOfExpertsImpl*>(&module);
    if (mixture == nullptr) return own;
    for (const auto& p : mixture->named_parameters(/*recurse=*/false))
      own.emplace(p.key(), Slice{0, mixture->options.router.experts});
    return own;
  });
}

void sum_gradients(const torch::nn::Module& root, const Group& batch, const Group& replicas) {
  const at::NoGradGuard no_grad;
  const auto experts = expert_slices(root);
  std::map<at::ScalarType, std::vector<at::Tensor>> theirs, rest;
  for (const auto& p : root.named_parameters()) {
    if (p.value().requires_grad())
      (experts.contains(p.key()) ? theirs : rest)[p.value().scalar_type()].push_back(p.value());
  }
  if (batch.size() > 1) {
    for (const auto& [type, parameters] : rest) sum_flat(parameters, batch);
  }
  if (replicas.size() > 1) {
    for (const auto& [type, parameters] : theirs) sum_flat(parameters, replicas);
  }
}

double clip_grad_norm(const torch::nn::Module& root, double max_norm, const ExpertParallel& ep,
                      const TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  const auto split = slices(root), experts = expert_slices(root);
  at::Tensor squares = at::zeros({4}, at::kDouble);
  for (const auto& p : root.named_parameters()) {
    const at::Tensor gradient = p.value().grad();
    if (!gradient.defined()) continue;
    squares[static_cast<std::int64_t>(
        kind_of(split.contains(p.key()), experts.contains(p.key())))] +=
        gradient.to(at::kDouble).square().sum().cpu();
  }
  const auto over = [&](const Group& group, std::initializer_list<std::int64_t> kinds) {
    at::Tensor sums = squares.clone();
    group.all_reduce(sums);
    for (const std::int64_t kind : kinds) squares[kind] = sums[kind];
  };
  if (tp.size() > 1) over(tp.group(), {1, 3});
  if (ep.size() > 1) over(ep.group(), {2, 3});
  return internal::clip_to_norm(root.parameters(), std::sqrt(squares.sum().item<double>()),
                                max_norm);
}

}  // namespace weft::parallel
