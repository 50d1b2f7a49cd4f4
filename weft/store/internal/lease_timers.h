// When the leases end, on the leader's clock.
#pragma once

#include <vector>

#include "weft/store/internal/key_values.h"
#include "weft/store/internal/raft_options.h"

namespace weft::store::internal {

// A new leader does not know when a lease was last kept alive, so it starts the time of all leases
// again: a lease never ends early by a change of the leader. Only the leader's kExpire command ends
// a lease, and only if it was not kept alive in the meantime.
class LeaseTimers {
 public:
  void start_all(const KeyValues& state, Time now) {
    ends_.clear();
    for (const auto& [id, lease] : state.leases()) ends_[id] = now + lease.ttl;
  }
  void stop_all() { ends_.clear(); }
  // The command has been applied to `state` with this answer.
  void applied(const Request& command, const Response& response, const KeyValues& state, Time now) {
    if (response.status != Status::kDone) return;
    const auto granted = static_cast<LeaseId>(response.number);
    const LeaseId id = command.op == Op::kGrant ? granted : command.lease;
    const auto lease = state.leases().find(id);
    if (command.op == Op::kGrant || command.op == Op::kKeepAlive) {
      if (lease != state.leases().end()) ends_[id] = now + lease->second.ttl;
    } else if (command.op == Op::kRevoke || command.op == Op::kExpire) {
      ends_.erase(id);
    }
  }
  // Commands that end the leases whose time is over. Each lease is named once.
  std::vector<Request> expired(const KeyValues& state, Time now) {
    std::vector<Request> commands;
    for (auto& [id, end] : ends_) {
      const auto lease = state.leases().find(id);
      if (end > now || lease == state.leases().end()) continue;
      end = Time::max();
      commands.push_back({.op = Op::kExpire, .lease = id, .revision = lease->second.renewals});
    }
    return commands;
  }
  Time next() const {
    Time first = Time::max();
    for (const auto& [id, end] : ends_) first = std::min(first, end);
    return first;
  }

 private:
  std::map<LeaseId, Time> ends_;
};

}  // namespace weft::store::internal
