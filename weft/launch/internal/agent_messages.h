// The messages of a node's agent and its launcher over a Link, each as a type.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "weft/launch/internal/orders.h"
#include "weft/launch/membership.h"
#include "weft/rank_link/messages.h"

namespace weft::launch::internal {

// From the agent.
struct NodeJoined {  // the node has this number and this lease in the store
  static constexpr const char* kVerb = "node";
  int node = 0;
  std::uint64_t lease = 0;
  std::string text() const { return std::to_string(node) + " " + std::to_string(lease); }
  bool parse(const std::string& text);
};
struct Fenced : rank_link::NoValue {  // the other nodes went on without this one
  static constexpr const char* kVerb = "fenced";
};
struct NewOrders {  // what the membership says for this node
  static constexpr const char* kVerb = "orders";
  NodeOrders orders;
  std::string text() const { return to_text(orders); }
  bool parse(const std::string& text) {
    orders = orders_of(text);
    return true;
  }
};
struct StoreSilent : rank_link::TextValue {  // the membership cannot be changed, for this reason
  static constexpr const char* kVerb = "alone";
};
struct StoreBack : rank_link::NoValue {  // it can be changed again
  static constexpr const char* kVerb = "back";
};
struct Over {  // the job is over for this node
  static constexpr const char* kVerb = "over";
  int code = 0;
  std::string why = {};
  std::string text() const { return std::to_string(code) + " " + why; }
  bool parse(const std::string& text);
};
// rank_link::RanksLost: the nodes of these ranks are lost.
using AgentMessage =
    std::variant<NodeJoined, Fenced, NewOrders, rank_link::RanksLost, StoreSilent, StoreBack, Over>;

// From the launcher.
struct NodeState : rank_link::TextValue {  // a NodeReport as text
  static constexpr const char* kVerb = "report";
};
using NodeMessage = std::variant<NodeState>;

}  // namespace weft::launch::internal
