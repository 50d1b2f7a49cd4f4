// What a member writes to its journal, and reads again after its process was replaced.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/store/internal/election.h"

namespace weft::store::internal {

struct Identity {
  std::uint64_t cluster = 0;
  MemberId me = 0;
  std::uint64_t incarnation = 0;
  Index added = 0;  // a configuration at or before this entry has the member
  bool operator==(const Identity&) const = default;
};

struct Saved {
  std::optional<Identity> identity;  // none: a newcomer
  Vote vote;
  Log log{Snapshot{}};
};

std::string identity_record(const Identity& identity);
std::string vote_record(const Vote& vote);
std::string snapshot_record(const Snapshot& snapshot);
// The entries from `from` on, which replace all entries from there on.
std::string entries_record(const Log& log, Index from);

// The records that replace all earlier ones.
std::vector<std::string> all_records(const Identity& identity, const Vote& vote, const Log& log);

// Adds the next record to what the earlier ones gave. Throws Error(kCorrupt).
void replay(std::string_view record, Saved& saved);

}  // namespace weft::store::internal
