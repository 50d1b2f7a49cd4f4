// Who should be a member of the replicated store, and who a voter. Pure functions.
#pragma once

#include <functional>
#include <optional>

#include "weft/store/internal/configuration.h"

namespace weft::store::internal {

inline constexpr std::size_t kMaxStoreVoters = 7;

// What the leader knows of a member.
struct MemberView {
  bool is_lost = false;       // silent for long, or replaced
  bool is_caught_up = false;  // has (almost) the whole log
};

// The next change that the leader should make, if any: lost members leave, and members that have
// caught up become voters while there are fewer than kMaxStoreVoters. Members with the lowest ids
// come first.
std::optional<Configuration> next_change(const Configuration& now,
                                         const std::function<MemberView(MemberId)>& view);

// With the newcomer as a member without a vote, in place of a member of the same node.
Configuration with_newcomer(Configuration now, Member newcomer);

}  // namespace weft::store::internal
