#include "weft/launch/internal/orders.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft::launch::internal {

NodeOrders orders_for(int node, const JobPlan& plan, const std::vector<NodeReport>& nodes) {
  NodeOrders orders;
  orders.node = node;
  orders.plan = plan;
  std::set<int> used;
  for (const auto& [rank, place] : plan.ranks) {
    used.insert(place.node);
    orders.world = std::max(orders.world, rank + 1);
    orders.members += place.member ? 1 : 0;
    if (place.node != node) orders.plan.ranks.erase(rank);
  }
  for (const auto& [rank, place] : plan.successors) {
    if (place.node == node) orders.plan.ranks[rank] = place;
  }
  orders.plan.successors.clear();
  std::erase_if(orders.plan.servers, [&](const auto& entry) { return entry.second != node; });
  orders.nodes = static_cast<int>(used.size());
  // The plan may have to wait for the agent that puts the last checkpoint into it.
  orders.all_left =
      orders.is_over() && std::all_of(nodes.begin(), nodes.end(), [&](const NodeReport& report) {
        return report.left && report.saved.serial <= plan.saved.serial;
      });
  orders.all_know =
      orders.all_left &&
      std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.knows_all_left; });
  return orders;
}

std::set<int> lost_with_nodes(const JobPlan& before, const JobPlan& plan,
                              const std::vector<NodeReport>& nodes) {
  std::set<int> lost;
  if (before.attempt != plan.attempt) return lost;
  for (const auto& [rank, place] : before.ranks) {
    const auto now = plan.ranks.find(rank);
    const bool stays = now != plan.ranks.end() && now->second.incarnation == place.incarnation;
    const bool lives = std::any_of(nodes.begin(), nodes.end(), [&](const NodeReport& report) {
      return report.node == place.node;
    });
    if (!stays && !lives) lost.insert(rank);
  }
  return lost;
}

std::string to_text(const NodeOrders& orders) {
  const nlohmann::json object = {{"node", orders.node},         {"nodes", orders.nodes},
                                 {"world", orders.world},       {"members", orders.members},
                                 {"all_left", orders.all_left}, {"all_know", orders.all_know},
                                 {"plan", to_text(orders.plan)}};
  return object.dump();
}

NodeOrders orders_of(const std::string& text) {
  try {
    const auto object = nlohmann::json::parse(text);
    return {.node = object.at("node").get<int>(),
            .nodes = object.at("nodes").get<int>(),
            .world = object.at("world").get<int>(),
            .members = object.at("members").get<int>(),
            .all_left = object.at("all_left").get<bool>(),
            .all_know = object.at("all_know").get<bool>(),
            .plan = job_plan_of(object.at("plan").get<std::string>())};
  } catch (const nlohmann::json::exception& error) {
    throw Error(Errc::kCorrupt, std::string("unreadable orders of an agent: ") + error.what());
  }
}

}  // namespace weft::launch::internal
