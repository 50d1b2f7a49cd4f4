// Translates between decide() (supervision.h) and next_membership() (membership.h), for a launcher
// that keeps the membership itself (Situation::job): of a job of one node, or with --master-addr.
// Pure functions.
//
//   Situation::job, reports of its ranks ── next_membership() ──> first change, as a Decision
//        ▲                                                               │
//        └───────────── commit() ◄── the launcher executes it ───────────┘
//
// The launcher takes over one change at a time, once it has executed it. If a process cannot start,
// the membership stays as it is, and the next answer knows of it. Agents store the next membership
// first, as a whole, since other nodes act on it. README.md has the differences and their reasons.
//
//   rank of this node, by local number        in the membership
//   one of the first, or it has joined        a member
//   started in place of a lost one            replaces; its phase is in Situation::newcomers
//   added                                     neither of both; its phase is in newcomers
//   the others went on without it             gone
//   it leaves, or ended otherwise             no rank
//
// While the first group forms, its ranks are first, and not members. A process in place of one of
// them counts as lost: the others do not wait for it, so all ranks start again.
#pragma once

#include <optional>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

// True while ranks wait for all of the first group, which can still form.
bool is_meeting(const Situation& situation);

// True if all ranks start again.
bool starts_again(const Situation& situation, const Policy& policy, Time now);

// The next change of the ranks: kReplace, kGoOnWithout, kGrow, kAnnounce, or kWait until a rank can
// be started. nullopt: there is none, or the job cannot go on.
std::optional<Decision> next_change(const Situation& situation, const Policy& policy, Time now);

// The first ranks of an attempt start, all of them as members.
void begin_attempt(Situation& situation, int ranks);
// The launcher has executed the decision, one of next_change(): takes it over.
void commit(Situation& situation, const Decision& decision);
// A newcomer has joined the others.
void join(Situation& situation, int local);
// True if the rank was added and has not joined: the others do not wait for it.
bool is_added(const Situation& situation, int local);

}  // namespace weft::launch::internal
