// Measures the machines of a group: matrix products, memory and links.
#pragma once

#include "weft/comm/group.h"
#include "weft/plan/cluster/cluster.h"

namespace weft::train::internal {

// All ranks compute at once, so that they share memory as in training; where a host has fewer
// processors than its ranks use, as many as can run at once. The result is the same on all ranks.
// Takes some seconds. Collective.
plan::Cluster measure_cluster(const Group& world);

}  // namespace weft::train::internal
