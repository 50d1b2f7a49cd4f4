// For tests of the membership: nodes that follow it at once.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "weft/launch/internal/orders.h"
#include "weft/launch/membership.h"

namespace weft::launch::testing_nodes {

class Cluster {
 public:
  explicit Cluster(MembershipPolicy policy) : policy_(policy) {}

  void join(int node, int slots) { nodes_[node] = {.node = node, .slots = slots}; }
  void lose(int node) { nodes_.erase(node); }
  NodeReport& node(int number) { return nodes_.at(number); }
  void end_rank(int rank, RankPhase phase, int code = 0, const std::string& why = "") {
    const Placement& place = membership_.ranks.at(rank);
    nodes_.at(place.node).ranks[rank] = {place.incarnation, phase, why, code};
  }

  // Changes the membership until it is settled. Each node starts the ranks that it is given, and
  // they reach `phase`. So many of the highest ranks leave as the ranks are told.
  const Membership& settle(RankPhase phase = RankPhase::kMember, bool last_call = false) {
    for (int round = 0; round < 20; ++round) {
      const Membership before = membership_;
      membership_ = next_membership(membership_, reports(), policy_, last_call);
      follow(phase);
      if (membership_ == before && round > 1) return membership_;
    }
    ADD_FAILURE() << "the plan never settles: " << to_text(membership_);
    return membership_;
  }
  std::vector<int> places() const {
    std::vector<int> nodes;
    for (const auto& [rank, place] : membership_.ranks) nodes.push_back(place.node);
    return nodes;
  }
  Membership& membership() { return membership_; }
  std::vector<NodeReport> reports() const {
    std::vector<NodeReport> all;
    for (const auto& [number, node] : nodes_) all.push_back(node);
    return all;
  }

 private:
  void follow(RankPhase phase) {
    int more = membership_.announcement.ranks > 0 ? membership_.announcement.ranks : 1 << 20;
    for (auto& [number, node] : nodes_) {
      std::map<int, RankReport> ranks;
      const internal::NodeOrders orders = internal::orders_for(number, membership_, {});
      for (const auto& [rank, place] : orders.membership.ranks) {
        const auto known = node.ranks.find(rank);
        const bool same =
            known != node.ranks.end() && known->second.incarnation == place.incarnation;
        const bool stays = same && known->second.phase >= RankPhase::kMember;
        ranks[rank] = stays ? known->second : RankReport{place.incarnation, phase};
        if (place.member && more-- <= 0) ranks[rank].phase = RankPhase::kLeft;
      }
      node.ranks = ranks;
    }
  }

  const MembershipPolicy policy_;
  std::map<int, NodeReport> nodes_;
  Membership membership_;
};

}  // namespace weft::launch::testing_nodes
