// What a node knows while it is not a member of the store: other nodes that seek one too, and the
// addresses that members have told.
//
// Invariant: a node that was a member never founds a store, since one exists.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "weft/store/internal/message.h"
#include "weft/store/internal/raft_options.h"

namespace weft::store::internal {

class Newcomer {
 public:
  using Addresses = std::map<std::uint32_t, std::string>;  // by node

  // `founders`: see NodeOptions.
  Newcomer(std::uint32_t node, std::uint32_t founders) : node_(node), founders_(founders) {}

  // Another node seeks a store; it is gone.
  void heard(std::uint32_t node, Time now) { seekers_[node] = now; }
  void gone(std::uint32_t node) { seekers_.erase(node); }
  // True if this node must found the store now. Forgets nodes that are silent.
  bool should_found(Time now);
  // This node has become a member.
  void joined();

  // Takes the addresses of a kJoinReply.
  void learn(const Message& reply);
  const Addresses& addresses() const { return addresses_; }
  // A line for the log if a member says, for the first time, that this node's number is taken.
  std::optional<std::string> complaint(const Message& reply);

 private:
  std::uint32_t node_;
  std::uint32_t founders_;
  std::map<std::uint32_t, Time> seekers_;  // when they were heard
  Addresses addresses_;
  bool was_member_ = false;
  bool complained_ = false;
};

}  // namespace weft::store::internal
