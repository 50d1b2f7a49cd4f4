// The steps of all ranks of a schedule, held once where ranks are alike.
#pragma once

#include <vector>

#include "weft/schedule/schedule.h"

namespace weft::plan::internal {

// What a rank receives, or adds up by itself, in a round.
struct Event {
  int round = 0;
  int peer =
      // the place of the sender, counted from the first place of the rank's block; -1: a local
      // reduction
      -1;
  double bytes = 0;
  bool reduces = false;
};

// Places (of Topology::order) stand in blocks of parts.size(): the rank at place b * parts.size() +
// t does what part t says, with all peers moved on by b blocks, round the world.
struct Parts {
  std::vector<std::vector<Event>> parts;  // each by round
  std::int64_t count = 0;                 // of the request that they belong to
  int rounds = 0;
  bool by_symmetry = false;
};

// Every rank's own part where the steps of all can be held; else the parts of one block, where the
// first block's steps, moved, are those of the second, a middle and the last one. Blocks of one
// rank are tried, then those of the groups of each level. Throws as simulate() does.
Parts parts_of(const schedule::Request& request, std::size_t element);

}  // namespace weft::plan::internal
