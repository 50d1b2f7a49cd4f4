// Measures the machines of a group: matrix products, memory and links.
#pragma once

#include "weft/comm/group.h"
#include "weft/plan/cluster/cluster.h"

namespace weft::train::internal {

// All ranks compute at once, so that they share memory as in training; where a host has fewer
// processors than its ranks use, as many as can run at once. The result is the same on all ranks.
// Takes some seconds. `quick`: takes about a second; it leaves out large products, for models whose
// blocks are measured too. Collective.
plan::Cluster measure_cluster(const Group& world, bool quick = false);

// Where a host has fewer processors than its ranks use, the ranks take turns.
struct Turn {
  int turn = 0;   // Of this rank, from 0.
  int turns = 1;  // Of all ranks of the world, the same on all.
};
// Collective.
Turn turn_of(const Group& world);

// Seconds of a small message between ranks 0 and 1, the same on all ranks. 0 with one rank.
// Collective.
double measure_message(const Group& world);

}  // namespace weft::train::internal
