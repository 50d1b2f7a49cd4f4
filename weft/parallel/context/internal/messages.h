// Messages between the ranks of a ring, all on their way while the rank computes.
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

  // Begin. Contiguous tensors, which stay as they are until finish(); empty ones are left out, on
  // both sides.
  void send(const at::Tensor& tensor, int peer, Kind kind);
  Group::Work receive(const at::Tensor& into, int peer, Kind kind) const;  // null for an empty one
  // Until it is here.
  void wait(const Group::Work& work) const;
  // Until all that was sent is gone.
  void finish();

 private:
  const Group& group_;
  std::vector<Group::Work> sends_;
};

}  // namespace weft::parallel::internal
