// The replicated state of this node, up to where the log is applied, and the leases that a leader
// times.
//
// Invariant: state() is that after the entry applied(). Leases are timed only while this member
// leads.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "weft/store/internal/lease_timers.h"
#include "weft/store/internal/log.h"

namespace weft::store::internal {

class AppliedState {
 public:
  // `deduplicates`: see KeyValues.
  explicit AppliedState(bool deduplicates) : state_(deduplicates) {}

  const KeyValues& state() const { return state_; }
  Index applied() const { return applied_; }

  // Applies the next entry. The result is a command that it holds, and the answer for its client.
  std::optional<std::pair<Request, Response>> apply(const LogEntry& entry, Time now);
  // Continues from the snapshot, if it is ahead. Throws Error(kCorrupt).
  bool take_over(const Snapshot& snapshot);
  // A snapshot, if much was applied since the last one, which is in `log`.
  std::optional<Snapshot> snapshot_if_due(const Log& log);

  // A leader begins to time the leases; another member stops. `leads`: the term that this member
  // leads, or 0.
  void time_leases(Term leads, Time now);
  // Commands that end the leases whose time is over. Each lease is named once.
  std::vector<Request> expired(Time now) { return timers_.expired(state_, now); }
  // When the first lease ends.
  Time next() const { return timers_.next(); }

 private:
  KeyValues state_;
  Index applied_ = 0;
  std::size_t new_bytes_ = 0, new_entries_ = 0;  // applied since the snapshot
  LeaseTimers timers_;
  Term leads_ = 0;  // term whose leases this node times; 0: none
};

}  // namespace weft::store::internal
