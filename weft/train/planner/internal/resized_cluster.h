// The machines of a job after a resize.
#pragma once

#include <vector>

#include "weft/plan/cluster/cluster.h"

namespace weft::train::internal {

// Adds a type of nodes that has a processor of its own, and no node yet.
void add_node_type(plan::Cluster& cluster, plan::NodeType node, plan::Accelerator processor);

// The cluster with `ranks` ranks on the same hosts. A host with the most ranks loses one first, and
// one with the fewest gets one first; of several, the last one. Hosts without ranks leave. Ranks of
// a host share its memory, and compute in turn where it has fewer processors. Pure.
plan::Cluster with_ranks(const plan::Cluster& cluster, int ranks);

// The ranks' slowness (plan::Corrections) on that cluster: of each rank the mean of its host, since
// it is not known which ranks have left. `slowness`: of the ranks of `cluster`, in the order of its
// hosts; empty: all alike. Pure.
std::vector<double> slowness_with(const plan::Cluster& cluster, const std::vector<double>& slowness,
                                  int ranks);

}  // namespace weft::train::internal
