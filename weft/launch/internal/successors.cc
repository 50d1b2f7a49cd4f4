// The ranks of a node that leaves. The processes that replace them start first, and load while the
// ranks train on. When all have loaded, the ranks leave together, so that the group forms again
// once.
#include <algorithm>

#include "weft/launch/internal/membership_update.h"

namespace weft::launch::internal {

// It waits for a group, or the ranks have taken it into theirs already.
bool MembershipUpdate::is_ready(int rank, const Placement& successor) const {
  return is(rank, successor, RankPhase::kWaiting) || is(rank, successor, RankPhase::kMember) ||
         is(rank, successor, RankPhase::kDone);
}

// True if the rank trains on for now, on a node that leaves.
bool MembershipUpdate::leaves_later(int rank, const Placement& place) const {
  if (!membership_.leaving.contains(place.node) || membership_.aside.contains(place.node))
    return false;
  const bool runs = is(rank, place, RankPhase::kMember) && place.member && !place.replaces;
  const auto mine = membership_.successors.find(rank);
  const bool is_replaced = mine != membership_.successors.end() && is_ready(rank, mine->second) &&
                           !is(rank, mine->second, RankPhase::kWaiting);
  const bool all_ready =
      std::all_of(membership_.successors.begin(), membership_.successors.end(),
                  [&](const auto& entry) { return is_ready(entry.first, entry.second); });
  return runs && !is_replaced && !all_ready;
}

// Gives the ranks of nodes that leave a successor each, if lost ranks would be replaced.
void MembershipUpdate::prepare_successors() {
  for (auto next = membership_.successors.begin(); next != membership_.successors.end();) {
    const auto& [rank, successor] = *next;
    const bool refused = is(rank, successor, RankPhase::kRefused);
    const bool lost = node(successor.node) == nullptr || is_unused(successor.node) || refused ||
                      is(rank, successor, RankPhase::kLost) ||
                      is(rank, successor, RankPhase::kFailed);
    if (refused) membership_.never_joined = kMaxNeverJoined;
    if (lost && !is_unused(successor.node)) ++membership_.never_joined;
    next = lost ? membership_.successors.erase(next) : std::next(next);
  }
  for (const auto& [rank, place] : membership_.ranks) {
    const bool leaves = membership_.leaving.contains(place.node) && node(place.node) != nullptr;
    const bool runs = is(rank, place, RankPhase::kMember) && place.member && !place.replaces;
    if (!leaves || !runs || membership_.successors.contains(rank) ||
        membership_.replacements >= policy_.max_replacements)
      continue;
    const auto next = next_place(false);
    if (!next) return;
    membership_.successors[rank] = *next;
    ++membership_.replacements;
    note(loss(rank, place) + "; a new process on node " + std::to_string(next->node) +
         " replaces it" + count_of_replacements());
  }
}

}  // namespace weft::launch::internal
