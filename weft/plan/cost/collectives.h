// Times of collectives among the ranks of one axis of a layout, on the links of a cluster.
//
// NCCL: ring and tree with the protocols LL, LL128 and Simple, by the constants and the formula of
// its tuning model: latency of all hops + bytes / bus bandwidth. Since Hopper, NVSwitches can also
// reduce inside a node (NVLS). The fastest counts. weft: the schedules of weft/schedule, played on
// the links (plan/simulate.h); the fastest counts.
#pragma once

#include <vector>

#include "weft/plan/cluster/cluster.h"
#include "weft/plan/model/blocks.h"

namespace weft::plan {

// Ranks of one group of an axis, as far as communication depends on them.
struct GroupShape {
  int ranks = 1;
  int nodes = 1;     // Nodes that the group spans.
  int per_node = 1;  // Most ranks of the group on one node.
  // Groups of the same axis that use a node's network cards at the same time.
  int sharing = 1;
  double intra = 0;  // Bytes/s that one rank reaches in a ring inside a node.
  // Bytes/s of a rank's link in reductions that the switch of the node computes (NVLS). 0: none.
  double switched = 0;
  Link inter;        // Of the node, with its share.
  bool pci = false;  // Ranks inside a node are connected through PCIe.
  bool shared_memory = false;
  double latency = 0;  // Of a message inside a node.
  Library library = Library::kNccl;
  bool operator==(const GroupShape&) const = default;
};

// The group of these ranks. `all_groups`: number of groups of the axis that share a node with it.
GroupShape group_shape(const Cluster& cluster, const std::vector<int>& ranks, int sharing);

// GroupShape::switched of a node: of NVSwitches since Hopper (third generation).
double switch_bandwidth(const Cluster& cluster, const NodeType& type);

// Bytes/s of a ring through these devices of one node (numbers on the node).
double ring_bandwidth(const NodeType& type, const std::vector<int>& locals);

// Seconds of a collective with a payload of `bytes`: the array that is reduced, the whole gathered
// array, all blocks of an all-to-all, all parts of a ring. 0 for one rank.
double collective_seconds(ExchangeKind kind, double bytes, const GroupShape& group);

// An all-to-all of tokens to experts, with `copies` of a token in the payload, of which one goes to
// each node that has any of its experts (DeepEP, HybridEP).
double dispatch_seconds(double bytes, double copies, const GroupShape& group);

// Seconds of a message between two ranks, with `senders` ranks of the node sending at once.
double message_seconds(const Cluster& cluster, int from, int to, double bytes, int senders);

}  // namespace weft::plan
