// Sums whose bits do not depend on how a plan divides the operands (Plan::micro_shards).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

// Adds the gradients of micro-batches along the balanced binary tree over them: (0+1)+(2+3). Holds
// at most depth + 1 gradients.
class GradientTree {
 public:
  // `leaves`: number of micro-batches, a power of two.
  GradientTree(std::vector<at::Tensor> parameters, int leaves);
  // Takes the gradients of micro-batch `leaf` from grad(), in any order. Returns true for the last
  // one: grad() is then the sum of all.
  bool take(int leaf);

 private:
  using Gradients = std::vector<at::Tensor>;  // by parameter; undefined if it was not used

  const std::vector<at::Tensor> parameters_;
  const int leaves_;
  // Subtrees that wait for their sibling, by number of leaves and index.
  std::map<std::pair<int, int>, Gradients> waiting_;
};

// Sum of squares of the numbers of all ranks, in any parts and order. Computed with integers, exact
// to at least 2^-48. Not finite if a number is not. Collective: all-reduces 24 and 16 bytes.
double squares_in_any_order(const Group& group, const std::vector<at::Tensor>& parts);

}  // namespace weft::parallel::internal
