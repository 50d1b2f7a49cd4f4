// Asynchronous messages between the ranks of a ring, in transfer while the rank computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

enum class Kind {
  kKeys,
  kGradients,
  kLateGradients
};  // messages of one kind between two ranks match in order

class Messages {
 public:
  explicit Messages(const Group& group) : group_(group) {}

  // Start a send or a receive. Tensors are contiguous and must not change until finish(). Empty
  // tensors are skipped on both sides.
  void send(const at::Tensor& tensor, int peer, Kind kind);
  Group::Work receive(const at::Tensor& into, int peer, Kind kind) const;  // null for an empty one
  // Waits until the message has arrived.
  void wait(const Group::Work& work) const;
  // Waits until all messages are sent.
  void finish();

 private:
  const Group& group_;
  std::vector<Group::Work> sends_;
};

}  // namespace weft::parallel::internal
