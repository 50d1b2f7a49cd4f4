// Sums of few numbers in the order of reduce.h.
#pragma once

#include <cstddef>

namespace weft::kernels {

// The sum of the values along the balanced binary tree: ((0+1)+(2+3))+…
inline double tree_sum(const double* values, std::size_t count) {
  if (count == 0) return 0;
  if (count == 1) return values[0];
  const std::size_t half = count / 2;
  return tree_sum(values, half) + tree_sum(values + half, count - half);
}

}  // namespace weft::kernels
