// The steps of all ranks of a schedule, stored once for ranks that do the same.
#pragma once

#include <vector>

#include "weft/schedule/schedule.h"

namespace weft::plan::internal {

// A message that a rank receives in a round, or a local reduction.
struct Event {
  int round = 0;
  // Place of the sender, counted from the first place of the rank's block. -1: a local reduction.
  int peer = -1;
  double bytes = 0;
  bool reduces = false;
};

// Places (of Topology::order) form blocks of parts.size(). The rank at place b * parts.size() + t
// does what part t says, with all peers moved by b blocks, modulo the world.
struct Parts {
  std::vector<std::vector<Event>> parts;  // Sorted by round.
  std::int64_t count = 0;                 // Count of the request that is simulated.
  int rounds = 0;
  bool by_symmetry = false;
};

// Returns every rank's own part if the steps of all ranks can be stored. Otherwise looks for a
// block whose steps, moved, are those of the second, a middle and the last block, and returns its
// parts. Tries blocks of one rank, then those of the groups of each level. Throws as simulate()
// does.
Parts parts_of(const schedule::Request& request, std::size_t element);

}  // namespace weft::plan::internal
