// Sums whose bits do not depend on how a plan divides what is summed (Plan::micro_shards).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

// Gradients of micro-batches, added along the balanced binary tree over them: (0+1)+(2+3). Holds
// one more than the tree is deep.
class GradientTree {
 public:
  // Of `leaves` micro-batches, a power of two.
  GradientTree(std::vector<at::Tensor> parameters, int leaves);
  // Takes what the backward of micro-batch `leaf` has left in grad(). True with the last of them,
  // in any order: grad() is the sum of all.
  bool take(int leaf);

 private:
  using Gradients = std::vector<at::Tensor>;  // by parameter; undefined where it was not used

  const std::vector<at::Tensor> parameters_;
  const int leaves_;
  // For the other half, by leaves in it and which half.
  std::map<std::pair<int, int>, Gradients> waiting_;
};

// The sum of squares of what all ranks give, in any parts and order: by integers, to 2^-48 at
// least. Not finite where one of them is not. Collective: 24 and 16 bytes all-reduced.
double squares_in_any_order(const Group& group, const std::vector<at::Tensor>& parts);

}  // namespace weft::parallel::internal
