#include "weft/parallel/context/internal/messages.h"

#include <ATen/ATen.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/net/host.h"

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

// Endpoints of threads hear of a peer's end only through their own messages, so the host is asked too.
void Messages::wait(const Group::Work& work) const {
  if (!work) return;
  constexpr std::chrono::milliseconds kPatience(50);
  net::Host* const host = group_.host();
  while (host != nullptr && !work->isCompleted()) {
    try {
      work->wait(kPatience);
    } catch (const c10::Error&) {
      if (work->isCompleted()) break;
      host->check("context parallelism");
    }
  }
  work->wait();
}

void Messages::finish() {
  for (const Group::Work& work : sends_) wait(work);
  sends_.clear();
}

}  // namespace weft::parallel::internal
