// The order of the ranks' passes and of the blocks in them. At the start of each pass, every rank
// tells the others which pass it begins, and whether it ran its blocks in ascending order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "weft/comm/group.h"

namespace weft::engine::internal {

class PassOrder {
 public:
  explicit PassOrder(Group group) : group_(std::move(group)) {}

  // Begins a pass: sends this rank's number to all ranks. Collective.
  void begin(bool backward);
  // The pass is a forward pass with gradients.
  void with_gradients() { ++forwards_; }
  // A forward pass runs the block.
  void run(int block) { ascending_ = ascending_ && block >= std::exchange(last_, block); }
  // Waits for the numbers of this pass. Throws Error(kInvalidArgument) if a rank is in another one.
  void check_peers();

  // In a backward pass: true if the last forward of this rank was in ascending order.
  bool mine_in_order() const { return mine_in_order_; }
  // The same of all ranks, after check_peers().
  bool in_order() const { return in_order_; }

 private:
  const Group group_;
  std::int64_t passes_ = 0;
  int last_ = -1;          // the last block that ran in this forward pass
  int forwards_ = 0;       // forward passes with gradients since the last backward pass
  bool ascending_ = true;  // their blocks
  bool mine_in_order_ = true, in_order_ = true;
  // The pass that each rank is in.
  at::Tensor mine_, all_;
  Group::Work work_;  // null: known
};

}  // namespace weft::engine::internal
