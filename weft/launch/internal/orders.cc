#include "weft/launch/internal/orders.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json/json_fields.h"

namespace weft::launch::internal {

NodeOrders orders_for(int node, const Membership& membership,
                      const std::vector<NodeReport>& nodes) {
  NodeOrders orders;
  orders.node = node;
  orders.membership = membership;
  std::set<int> used;
  for (const auto& [rank, place] : membership.ranks) {
    used.insert(place.node);
    orders.world = std::max(orders.world, rank + 1);
    orders.members += place.member ? 1 : 0;
    if (place.node == node) continue;
    ++orders.elsewhere;
    orders.membership.ranks.erase(rank);
  }
  for (const auto& [rank, place] : membership.successors) {
    if (place.node == node) orders.membership.ranks[rank] = place;
  }
  orders.membership.successors.clear();
  std::erase_if(orders.membership.servers, [&](const auto& entry) { return entry.second != node; });
  orders.nodes = static_cast<int>(used.size());
  // The membership may have to wait for the agent that puts the last checkpoint into it.
  orders.all_left =
      orders.is_over() && std::all_of(nodes.begin(), nodes.end(), [&](const NodeReport& report) {
        return report.left && report.saved.serial <= membership.saved.serial;
      });
  orders.has_members = std::any_of(nodes.begin(), nodes.end(), [](const NodeReport& report) {
    return std::any_of(report.ranks.begin(), report.ranks.end(),
                       [](const auto& rank) { return rank.second.phase == RankPhase::kMember; });
  });
  orders.all_know =
      orders.all_left &&
      std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.knows_all_left; });
  return orders;
}

std::chrono::milliseconds pause_before_offer(int node, const std::vector<NodeReport>& nodes) {
  constexpr auto kForEach = std::chrono::milliseconds(20), kMost = std::chrono::milliseconds(1000);
  const auto before = std::count_if(nodes.begin(), nodes.end(),
                                    [&](const NodeReport& report) { return report.node < node; });
  return std::min<std::chrono::milliseconds>(kForEach * before, kMost);
}

std::set<int> lost_with_nodes(const Membership& before, const Membership& membership,
                              const std::vector<NodeReport>& nodes) {
  std::set<int> lost;
  if (before.attempt != membership.attempt) return lost;
  for (const auto& [rank, place] : before.ranks) {
    const auto now = membership.ranks.find(rank);
    const bool stays =
        now != membership.ranks.end() && now->second.incarnation == place.incarnation;
    const bool lives = std::any_of(nodes.begin(), nodes.end(), [&](const NodeReport& report) {
      return report.node == place.node;
    });
    if (!stays && !lives) lost.insert(rank);
  }
  return lost;
}

// All fields but the membership, which is a text in this text.
template <class Visit>
void each_field(NodeOrders& o, Visit&& visit) {
  visit("node", o.node);
  visit("nodes", o.nodes);
  visit("world", o.world);
  visit("members", o.members);
  visit("elsewhere", o.elsewhere);
  visit("all_left", o.all_left);
  visit("all_know", o.all_know);
  visit("has_members", o.has_members);
}

std::string to_text(const NodeOrders& orders) {
  nlohmann::json object = fields_to_json(orders);
  object["plan"] = to_text(orders.membership);
  return object.dump();
}

NodeOrders orders_of(const std::string& text) {
  try {
    const auto object = nlohmann::json::parse(text);
    auto orders = fields_from_json<NodeOrders>(object);
    orders.membership = membership_of(object.at("plan").get<std::string>());
    return orders;
  } catch (const nlohmann::json::exception& error) {
    throw Error(Errc::kCorrupt, std::string("unreadable orders of an agent: ") + error.what());
  }
}

}  // namespace weft::launch::internal
