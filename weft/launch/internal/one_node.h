// The ranks of one node as a job's membership with one node. So next_membership() (membership.h)
// decides there, too, which lost ranks are replaced, and how the number of ranks changes. Pure
// functions.
//
//   Situation ──> Membership, NodeReport ── next_membership() ──> Membership
//                                                             ──> its first change as a Decision
//
//   a rank in the Situation             in the membership
//   it runs                             a member
//   joining                             a rank that replaces another one
//   growing, waiting                    a rank that was added
//   done_without                        gone
//   leaving, or ended otherwise         no rank
//   of other_nodes                      a member on a second node
//
// A membership reads no clock. During the pause before the next start, the node has no free place.
#pragma once

#include <optional>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

// What becomes of a lost rank: kReplace, kGoOnWithout, or kWait until it is replaced. nullopt: no
// rank is lost, or the job cannot go on without it.
std::optional<Decision> act_on_loss(const Situation& situation, const Policy& policy, Time now);

// The next action on the way to the wanted number of ranks: kGrow, kAnnounce, or kWait.
Decision act_on_size(const Situation& situation, const Policy& policy, Time now);

}  // namespace weft::launch::internal
