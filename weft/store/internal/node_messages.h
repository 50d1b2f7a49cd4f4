// Messages to other nodes: who is connected, and on which node a member runs.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "weft/store/internal/message.h"

namespace weft::store::internal {

class NodeMessages {
 public:
  struct ToNode {
    std::uint32_t node;
    Message message;
  };

  void connected(std::uint32_t node) { connected_.insert(node); }
  void disconnected(std::uint32_t node) { connected_.erase(node); }
  const std::set<std::uint32_t>& connected() const { return connected_; }

  // A message of this member has come from this node.
  void heard(MemberId member, std::uint32_t node) { node_of_[member] = node; }
  void forget(MemberId member) { node_of_.erase(member); }
  void forget_members() { node_of_.clear(); }
  // The members that were heard from this node.
  std::vector<MemberId> members_at(std::uint32_t node) const {
    std::vector<MemberId> members;
    for (const auto& [member, its_node] : node_of_) {
      if (its_node == node) members.push_back(member);
    }
    return members;
  }

  void send(std::uint32_t node, Message message) { out_.push_back({node, std::move(message)}); }
  void send_to_all(const Message& message) {
    for (const std::uint32_t node : connected_) send(node, message);
  }
  // Sends it to the member `message.to`. Drops it if the member's node is unknown.
  void send(Message message, const Configuration& configuration) {
    const Member* const member = configuration.find(message.to);
    const auto heard = node_of_.find(message.to);
    if (heard != node_of_.end()) {
      send(heard->second, std::move(message));
    } else if (member != nullptr) {
      send(member->node, std::move(message));
    }
  }
  std::vector<ToNode> take() { return std::exchange(out_, {}); }

 private:
  std::set<std::uint32_t> connected_;
  std::map<MemberId, std::uint32_t> node_of_;  // of members that were heard
  std::vector<ToNode> out_;
};

}  // namespace weft::store::internal
