// Who carries which part of an array, for the hierarchical algorithms.
//
// A group's array is spread over its ranks so that everybody carries about as much: the ranks of an
// innermost group take a part each; where a group consists of groups, the ranks that carry the same
// elements in each of them, the counterparts, share these out among each other. Groups of unequal
// size cut the array at different places: counterparts are found for every stretch between two
// cuts, and each rank still carries as much of its own group's array as its neighbors.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/schedule/topology.h"

namespace weft::schedule::internal {

struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int owner = 0;  // rank
};

// `count` elements over the ranks of a group: pieces in their order, none empty. A level one beyond
// the topology's last has ranks for groups.
std::vector<Piece> spread(const Topology& topology, int level, int group, std::int64_t count);

// Elements that the same ranks carry in each of a group's children: owners by child.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<int> owners;
};
// Only those that `rank` takes part in; all for -1.
std::vector<Stretch> stretches(const Topology& topology, int level, int group, std::int64_t count,
                               int rank = -1);

}  // namespace weft::schedule::internal
