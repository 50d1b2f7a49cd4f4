// tree_sum(): a sum of few numbers in a fixed order.
#pragma once

#include <cstddef>

namespace weft::kernels {

// Returns the sum along a balanced binary tree, whose left subtree has half of the values, rounded
// down. For a power of two this is the order of reduce.h: (0+1)+(2+3).
inline double tree_sum(const double* values, std::size_t count) {
  if (count == 0) return 0;
  if (count == 1) return values[0];
  const std::size_t half = count / 2;
  return tree_sum(values, half) + tree_sum(values + half, count - half);
}

}  // namespace weft::kernels
