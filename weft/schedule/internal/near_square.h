// The grid of a world that nobody has given one.
#pragma once

#include <cmath>

#include "weft/schedule/topology.h"

namespace weft::schedule::internal {

// Of all grids with a place for each rank the one nearest to a square, with no more rows than
// columns; a torus.
inline Grid near_square(int world) {
  int rows = static_cast<int>(std::sqrt(static_cast<double>(world)));
  while (world % rows != 0) --rows;
  return {rows, world / rows};
}

}  // namespace weft::schedule::internal
