// Assigns the parts of an array to ranks, for the hierarchical algorithms.
//
// A group's array is spread over its ranks so that each rank carries about the same amount. In an
// innermost group, each rank takes one part. In a group of groups, the ranks that carry the same
// elements in each child group are counterparts. They divide these elements among themselves.
// Groups of unequal size cut the array at different places. So counterparts are found for every
// stretch between two cuts. Each rank still carries as much of its own group's array as the other
// ranks of the group.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/schedule/topology.h"

namespace weft::schedule::internal {

struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int owner = 0;  // Rank that carries the piece.
};

// Spreads `count` elements over the ranks of a group. Returns the pieces in order, none of them
// empty. On level num_levels(), each group is a single rank.
std::vector<Piece> spread(const Topology& topology, int level, int group, std::int64_t count);

// Elements that one rank of each child group carries. `owners` are these ranks, by child.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<int> owners;
};
// Returns the stretches in which `rank` takes part, or all of them for -1.
std::vector<Stretch> stretches(const Topology& topology, int level, int group, std::int64_t count,
                               int rank = -1);

}  // namespace weft::schedule::internal
