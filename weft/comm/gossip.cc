#include "weft/comm/gossip.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/internal/first_cause.h"

namespace weft::comm {
namespace {

void check(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    WEFT_REQUIRE(tensor.defined() && tensor.layout() == at::kStrided && tensor.is_floating_point(),
                 "gossip: only dense floating-point tensors can be averaged");
  }
}

// self * mine + sum of weight * received.
at::Tensor mixed(const schedule::Mixing& mixing, const at::Tensor& mine,
                 const std::vector<at::Tensor>& heard) {
  const bool half = mine.scalar_type() == at::kHalf || mine.scalar_type() == at::kBFloat16;
  const auto type = half ? at::kFloat : mine.scalar_type();
  at::Tensor sum = mine.to(type) * mixing.self;
  for (std::size_t i = 0; i < heard.size(); ++i)
    sum.add_(heard[i].to(type), mixing.hears[i].weight);
  return sum;
}

}  // namespace

void gossip(const Group& group, at::TensorList tensors, std::int64_t round,
            const GossipOptions& options) {
  const at::NoGradGuard no_grad;
  check(tensors);
  const auto mixing =
      schedule::mixing({options.graph, group.size(), options.seed}, group.rank(), round);
  std::vector<Group::Work> works;
  std::vector<std::vector<at::Tensor>> heard(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::vector<at::Tensor> mine{tensors[t].detach().contiguous()};
    for (const int peer : mixing.sends_to)
      works.push_back(group.backend().send(mine, peer, options.tag));
    for (const auto& neighbor : mixing.hears) {
      std::vector<at::Tensor> one{at::empty_like(mine[0])};
      works.push_back(group.backend().recv(one, neighbor.rank, options.tag));
      heard[t].push_back(one[0]);
    }
  }
  FirstCause failure;
  for (const auto& work : works) {
    try {
      work->wait();
    } catch (const std::exception&) {
      failure.note();
    }
  }
  failure.rethrow();
  if (mixing.hears.empty()) return;  // this rank pauses in this round
  for (std::size_t t = 0; t < tensors.size(); ++t)
    tensors[t].copy_(mixed(mixing, tensors[t], heard[t]));
}

}  // namespace weft::comm
