// What the job's membership says for one node: the agent sends it to the launcher whenever it
// changes. Pure functions.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "weft/launch/membership.h"

namespace weft::launch::internal {

struct NodeOrders {
  int node = -1;      // number of this node; -1: it has none yet
  int nodes = 0;      // nodes that have ranks
  int world = 0;      // ranks of the job, and numbers of ranks that are not used
  int members = 0;    // ranks of the group
  int elsewhere = 0;  // ranks of the job on other nodes
  // All nodes know that the job is over, their ranks have ended, and the membership has the newest
  // checkpoint.
  bool all_left = false;
  bool all_know = false;     // all nodes have seen all_left, so none needs the store any more
  bool has_members = false;  // a node reports a rank of the group that runs
  Membership membership;     // with the ranks that this node shall run
  bool is_over() const { return membership.done || !membership.end.empty(); }
  bool operator==(const NodeOrders&) const = default;
};

NodeOrders orders_for(int node, const Membership& membership, const std::vector<NodeReport>& nodes);

// True if the job has ended before this node could take part. A node that has had orders took part,
// also if the others went on without it since.
inline bool comes_too_late(const Membership& membership, bool had_orders) {
  return !had_orders && (membership.done || !membership.end.empty());
}

// How long a node waits before it offers a membership. All nodes see a change at once, and each
// offer goes to all of them. So the node with the lowest number offers first, the next one 20 ms
// later.
std::chrono::milliseconds pause_before_offer(int node, const std::vector<NodeReport>& nodes);

// Ranks of nodes that the membership has given up since the membership `before`. Nothing need have
// closed their connections, so ranks of other nodes may wait for them.
std::set<int> lost_with_nodes(const Membership& before, const Membership& membership,
                              const std::vector<NodeReport>& nodes);

// For rank_link::Link. The inverse function throws Error(kCorrupt).
std::string to_text(const NodeOrders& orders);
NodeOrders orders_of(const std::string& text);

}  // namespace weft::launch::internal
