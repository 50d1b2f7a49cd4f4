// Default grid of a world.
#pragma once

#include <cmath>

#include "weft/schedule/topology.h"

namespace weft::schedule::internal {

// Returns the torus with one place per rank that is nearest to a square, with no more rows than
// columns.
inline Grid near_square(int world) {
  int rows = static_cast<int>(std::sqrt(static_cast<double>(world)));
  while (world % rows != 0) --rows;
  return {rows, world / rows};
}

}  // namespace weft::schedule::internal
