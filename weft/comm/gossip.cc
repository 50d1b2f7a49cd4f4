#include "weft/comm/gossip.h"

#include <ATen/ATen.h>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
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

// The messages of one round.
class Messages {
 public:
  Messages(const Group& group, const schedule::Mixing& mixing, int tag)
      : group_(group), mixing_(mixing), tag_(tag) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  // After an error in start(): the neighbors would take what is left for messages of a later round,
  // and messages under way use the caller's memory.
  ~Messages() {
    if (works_.empty()) return;
    group_.abort(Error(Errc::kAborted, "a round of gossip has failed", {"gossip", group_.rank()}));
    try {
      wait();
    } catch (const std::exception&) {
      // The caller has the error of start().
    }
  }

  // Begins to send `mine`. wait() fills the tensors that it returns.
  std::vector<at::Tensor> start(const at::Tensor& mine, std::span<const std::int64_t> lengths) {
    std::vector<at::Tensor> sent{mine}, heard;
    for (const int peer : mixing_.sends_to)
      works_.push_back(group_.backend().send(sent, peer, tag_));
    for (std::size_t i = 0; i < mixing_.hears.size(); ++i) {
      std::vector<at::Tensor> one{lengths.empty() ? at::empty_like(mine)
                                                  : at::empty({lengths[i]}, mine.options())};
      works_.push_back(group_.backend().recv(one, mixing_.hears[i].rank, tag_));
      heard.push_back(one[0]);
    }
    return heard;
  }
  void wait() {
    FirstCause failure;
    for (const auto& work : std::exchange(works_, {})) {
      try {
        work->wait();
      } catch (const std::exception&) {  // thrown once all have been waited for
        failure.note();
      }
    }
    failure.rethrow();
  }

 private:
  const Group& group_;
  const schedule::Mixing& mixing_;
  const int tag_;
  std::vector<Group::Work> works_;
};

}  // namespace

void gossip(const Group& group, at::TensorList tensors, std::int64_t round,
            const GossipOptions& options) {
  const at::NoGradGuard no_grad;
  check(tensors);
  const auto mixing =
      schedule::mixing({options.graph, group.size(), options.seed}, group.rank(), round);
  Messages messages(group, mixing, options.tag);
  std::vector<std::vector<at::Tensor>> heard;
  for (const at::Tensor& tensor : tensors)
    heard.push_back(messages.start(tensor.detach().contiguous(), {}));
  messages.wait();
  if (mixing.hears.empty()) return;  // this rank pauses in this round
  for (std::size_t t = 0; t < tensors.size(); ++t)
    tensors[t].copy_(mixed(mixing, tensors[t], heard[t]));
}

std::vector<at::Tensor> exchange_with_neighbors(const Group& group, const schedule::Mixing& mixing,
                                                const at::Tensor& mine,
                                                std::span<const std::int64_t> lengths, int tag) {
  WEFT_REQUIRE(lengths.empty() || lengths.size() == mixing.hears.size(),
               "exchange_with_neighbors: " + std::to_string(lengths.size()) + " lengths for " +
                   std::to_string(mixing.hears.size()) + " neighbors");
  Messages messages(group, mixing, tag);
  auto heard = messages.start(mine.detach().contiguous(), lengths);
  messages.wait();
  return heard;
}

}  // namespace weft::comm
