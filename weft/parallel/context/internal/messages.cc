#include "weft/parallel/context/internal/messages.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace weft::parallel::internal {
namespace {

constexpr int kFirstTag = 0x63700000;

int tag_of(Kind kind) { return kFirstTag + static_cast<int>(kind); }

}  // namespace

void Messages::send(const at::Tensor& tensor, int peer, Kind kind) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> one{tensor};
  sends_.push_back(group_.backend().send(one, peer, tag_of(kind)));
}

Group::Work Messages::receive(const at::Tensor& into, int peer, Kind kind) const {
  if (into.numel() == 0) return {};
  std::vector<at::Tensor> one{into};
  return group_.backend().recv(one, peer, tag_of(kind));
}

void Messages::wait(const Group::Work& work) const { group_.wait(work, "context parallelism"); }

void Messages::finish() {
  for (const Group::Work& work : sends_) wait(work);
  sends_.clear();
}

}  // namespace weft::parallel::internal
