#include "weft/store/internal/applied_state.h"

#include <algorithm>

namespace weft::store::internal {

std::optional<std::pair<Request, Response>> AppliedState::apply(const LogEntry& entry, Time now) {
  ++applied_;
  ++new_entries_;
  new_bytes_ += entry.data.size();
  if (entry.kind != LogEntry::Kind::kCommand) return std::nullopt;
  Request command = decode_request(entry.data);
  auto response = state_.apply(command);
  if (!response) return std::nullopt;
  if (leads_ != 0) timers_.applied(command, *response, state_, now);
  return std::pair(std::move(command), std::move(*response));
}

bool AppliedState::take_over(const Snapshot& snapshot) {
  if (applied_ >= snapshot.index) return false;
  state_.restore(snapshot.state);
  applied_ = snapshot.index;
  new_bytes_ = new_entries_ = 0;
  return true;
}

std::optional<Snapshot> AppliedState::snapshot_if_due(const Log& log) {
  constexpr std::size_t kEntries = 4096, kBytes = std::size_t{4} << 20;
  const std::size_t last = log.snapshot().state.size();
  if (new_entries_ < kEntries && new_bytes_ < std::max(kBytes, last)) return std::nullopt;
  new_bytes_ = new_entries_ = 0;
  return Snapshot{applied_, log.term_at(applied_), log.configuration_at(applied_),
                  state_.snapshot()};
}

void AppliedState::time_leases(Term leads, Time now) {
  if (leads == leads_) return;
  leads_ = leads;
  timers_.stop_all();
  if (leads != 0) timers_.start_all(state_, now);
}

}  // namespace weft::store::internal
