// The next membership: the order of its parts, and how the number of ranks changes. Lost ranks are
// in internal/losses.cc, nodes that leave in internal/successors.cc, parameter servers in
// internal/placing_servers.cc.
//
// The agent of each node computes the next membership from the membership so far and the reports,
// and offers it to the store by compare-and-set. So nothing here reads a clock, and all containers
// are ordered: equal inputs give equal memberships. An agent whose offer comes second reads again,
// and computes from the membership that won.
//
// A placement has an incarnation that no other placement has. A report counts only for its
// incarnation, so an older process of the same rank changes nothing. The membership believes what
// nodes report, and never assumes that a rank has done what it was placed for:
//
//   placed ──> kStarting ──> kWaiting ──> kMember      (reports of the node)
//                                            └─ note_members() sets Placement::member
//
// go_on() then works in this order: joined ranks, faults that end the job, nodes that fail too
// often or cannot start a process, processes that replace ranks of leaving nodes, lost ranks,
// servers. It changes the number of ranks only if nothing else is under way. So the ranks form
// their group again for one change at a time.
#include "weft/launch/membership.h"

#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/launch/internal/membership_update.h"

namespace weft::launch {
namespace internal {

void MembershipUpdate::form() {
  int rank = 0, used = 0;
  for (const auto& [number, node] : nodes_) {
    if (is_unused(number)) continue;
    if (used++ == policy_.max_nodes) break;
    for (int slot = 0; slot < node->slots && rank < most_ranks(); ++slot)
      membership_.ranks[rank++] = {
          .node = number, .incarnation = ++membership_.incarnations, .first = true};
  }
  membership_.formed = true;
  place_servers();
}

void MembershipUpdate::note_checkpoint() {
  for (const auto& [number, node] : nodes_) {
    if (node->saved.serial > membership_.saved.serial) membership_.saved = node->saved;
  }
}

void MembershipUpdate::take_requests() {
  for (const auto& [number, node] : nodes_) {
    if (node->wanted.serial > membership_.wanted.serial) {
      membership_.wanted = node->wanted;
      membership_.never_joined = 0;
      note("the job shall have " + counted(membership_.wanted.ranks, "rank"));
    }
    if (!node->run.empty()) membership_.run = node->run;
    if (!node->stop.why.empty() && !membership_.done) stop(node->stop, number);
    if (node->usable) membership_.usable = *node->usable;
  }
  if (!membership_.done && membership_.end.empty()) let_nodes_leave();
}

void MembershipUpdate::go_on() {
  note_members();
  membership_.done = membership_.done || any(RankPhase::kDone);
  if (membership_.done || !membership_.end.empty()) return membership_.successors.clear();
  end_if_failed();
  end_if_servers_are_lost();
  if (membership_.end.empty()) set_aside();
  if (membership_.end.empty()) move_unstarted();
  if (membership_.end.empty()) prepare_successors();
  if (membership_.end.empty()) replace_lost();
  if (membership_.end.empty()) place_servers();
  if (membership_.end.empty() && !recovers() && membership_.successors.empty()) resize();
}

int MembershipUpdate::free_slots(const NodeReport& at) const {
  const auto is_here = [&](const auto& rank) { return rank.second.node == at.node; };
  const auto used =
      std::count_if(membership_.ranks.begin(), membership_.ranks.end(), is_here) +
      std::count_if(membership_.successors.begin(), membership_.successors.end(), is_here);
  const bool may_start =
      !at.one_node || (!at.one_node->pauses && at.one_node->failed_starts < kMaxFailedStarts);
  if (is_unused(at.node) || !may_start) return 0;
  return std::max(0, at.slots - static_cast<int>(used));
}

const NodeReport* MembershipUpdate::place() const {
  const auto room = [&](const NodeReport& at) {
    return std::pair(!at.starts_fail, free_slots(at));
  };
  const NodeReport* best = nullptr;
  for (const auto& [number, at] : nodes_) {
    if (free_slots(*at) > 0 && (best == nullptr || room(*at) > room(*best))) best = at;
  }
  return best;
}

void MembershipUpdate::stop(const StopRequest& request, int number) {
  if (!membership_.end.empty()) return;
  end("stopped by " + request.why, request.code);
  membership_.stop = request;
  membership_.stop_node = number;
}

void MembershipUpdate::let_nodes_leave() {
  std::erase_if(membership_.leaving, [&](int number) { return node(number) == nullptr; });
  std::vector<const NodeReport*> asking;
  for (const auto& [number, at] : nodes_) {
    if (!at->leave.why.empty() && !membership_.leaving.contains(number)) asking.push_back(at);
  }
  const bool has_begun = membership_.ranks.empty() || count(&Placement::member) > 0;
  // While the first group forms, the loss of a rank would start all of them again. The request
  // waits.
  if (asking.empty() || !has_begun) return;
  const NodeReport& first = *asking.front();
  if (!can_go_on_without(asking)) return stop(first.leave, first.node);
  if (recovers() || !membership_.leaving.empty()) return;
  membership_.leaving.insert(first.node);
  note("node " + std::to_string(first.node) + " (" + first.host + ") leaves");
}

bool MembershipUpdate::can_go_on_without(const std::vector<const NodeReport*>& asking) const {
  MembershipUpdate trial = *this;
  for (const NodeReport* const at : asking) {
    if (at->holds_store) return false;
    trial.membership_.leaving.insert(at->node);
    if (loses_a_shard_without({at->node})) return false;
  }
  // Tried on a copy. The answer is no if the copy ends, or if it starts all ranks again.
  trial.replace_lost();
  return trial.membership_.end.empty() && trial.membership_.attempt == membership_.attempt;
}

void MembershipUpdate::note_members() {
  std::erase_if(membership_.ranks,
                [&](const auto& entry) { return is(entry.first, entry.second, RankPhase::kLeft); });
  for (auto& [rank, place] : membership_.ranks) {
    const bool joins = is(rank, place, RankPhase::kMember) || is(rank, place, RankPhase::kDone);
    if (!joins || (place.member && !place.replaces)) continue;
    place.member = true;
    place.replaces = false;
    if (!place.first) membership_.never_joined = 0;
  }
}

void MembershipUpdate::end_if_failed() {
  for (const auto& [rank, place] : membership_.ranks) {
    // Its successor has taken its place in the group.
    if (membership_.successors.contains(rank)) continue;
    if (is(rank, place, RankPhase::kFailed))
      end(rank_name(rank) + " failed first: " + report(rank, place)->why,
          report(rank, place)->code);
  }
}

std::optional<Placement> MembershipUpdate::next_place(bool replaces) {
  const NodeReport* const at = place();
  if (at == nullptr || membership_.never_joined >= kMaxNeverJoined) return std::nullopt;
  return Placement{.node = at->node,
                   .incarnation = ++membership_.incarnations,
                   .replaces = replaces,
                   .tries = membership_.never_joined};
}

bool MembershipUpdate::put(int rank, bool replaces) {
  const auto place = next_place(replaces);
  if (!place) return false;
  membership_.ranks[rank] = *place;
  membership_.gone.erase(rank);
  return true;
}

void MembershipUpdate::set_aside() {
  std::erase_if(membership_.aside, [&](int number) {
    const NodeReport* const at = node(number);
    return at == nullptr || at->failures < kMaxFailures;
  });
  for (const auto& [number, at] : nodes_) {
    if (at->failures < kMaxFailures || membership_.aside.contains(number)) continue;
    int here = 0, elsewhere = 0;
    for (const auto& [rank, place] : membership_.ranks) here += place.node == number;
    for (const auto& [other, report] : nodes_) {
      if (other != number) elsewhere += free_slots(*report);
    }
    if (elsewhere < here) continue;
    membership_.aside.insert(number);
    note("node " + std::to_string(number) + " (" + at->host +
         ") gets no ranks: " + std::to_string(at->failures) + " failed there in ten minutes");
  }
}

// Another node starts a process that its own node cannot start. The others wait for it, and it has
// counted as a replacement already.
void MembershipUpdate::move_unstarted() {
  for (auto& [rank, at] : membership_.ranks) {
    const NodeReport* const from = node(at.node);
    const bool is_unstarted = from != nullptr && from->starts_fail && !at.first && !at.member &&
                              report(rank, at) == nullptr;
    const NodeReport* const to = is_unstarted ? place() : nullptr;
    if (to == nullptr || to->starts_fail) continue;
    note(rank_name(rank) + " cannot be started on node " + std::to_string(at.node) +
         ": it is started on node " + std::to_string(to->node));
    at.node = to->node;
    at.incarnation = ++membership_.incarnations;
  }
}

bool MembershipUpdate::recovers() const {
  return std::any_of(membership_.ranks.begin(), membership_.ranks.end(), [](const auto& entry) {
    return entry.second.replaces || (entry.second.first && !entry.second.member);
  });
}

void MembershipUpdate::resize() {
  const int members = count(&Placement::member);
  std::set<int> coming;
  for (const auto& [rank, place] : membership_.ranks) {
    if (!place.member) coming.insert(rank);
  }
  grow(members, coming);
  const bool all_wait = std::all_of(coming.begin(), coming.end(), [&](int rank) {
    return is(rank, membership_.ranks.at(rank), RankPhase::kWaiting);
  });
  if (members > most_ranks()) {
    // The mesh cannot use fewer ranks than its multiple: the job then keeps its members.
    const int most = std::max(most_ranks(), policy_.min_ranks);
    return announce(most < membership_.usable.multiple ? members : membership_.usable.most(most),
                    {});
  }
  const int next = membership_.usable.most(members + static_cast<int>(coming.size()));
  if (all_wait && next > members) return announce(next, coming);
  announce(members < membership_.usable.multiple ? members : membership_.usable.most(members), {});
}

void MembershipUpdate::grow(int members, std::set<int>& coming) {
  const int here = members + static_cast<int>(coming.size());
  int places = 0;
  for (const auto& [number, at] : nodes_) places += free_slots(*at);
  // A lost rank that comes back counts as a replacement, unless somebody asked for this number.
  // Without a replacement its place stays empty.
  const bool is_asked = membership_.wanted.serial > 0;
  const int left = is_asked ? kNoLimit : policy_.max_replacements - membership_.replacements;
  const auto lost =
      std::distance(membership_.gone.begin(), membership_.gone.lower_bound(most_ranks()));
  const int most = most_ranks() - std::max(0, static_cast<int>(lost) - left);
  int room = membership_.usable.most(std::min(most, here + places)) - here;
  for (int rank = 0; room > 0; ++rank) {
    if (membership_.ranks.contains(rank)) continue;
    const bool replaces = !is_asked && membership_.gone.contains(rank);
    if (replaces && membership_.replacements >= policy_.max_replacements) continue;
    if (!put(rank, false)) return;
    membership_.replacements += replaces ? 1 : 0;
    note(rank_name(rank) + " is added on node " + std::to_string(membership_.ranks.at(rank).node));
    coming.insert(rank);
    --room;
  }
}

// One change may lose all ranks of a node, so all its notes are kept, as far as a message has room
// for them. Of the changes before, the latest ones are kept, for nodes that have not read them yet.
void MembershipUpdate::note(const std::string& text) {
  constexpr std::size_t kNotes = 16, kBytes = 32 << 10;
  auto& notes = membership_.notes;
  notes.emplace(notes.empty() ? 1 : notes.rbegin()->first + 1, text);
  const auto bytes = [&] {
    std::size_t sum = 0;
    for (const auto& [number, one] : notes) sum += one.size();
    return sum;
  };
  while (notes.size() > kNotes && (notes.begin()->first <= last_note_ || bytes() > kBytes))
    notes.erase(notes.begin());
}

void MembershipUpdate::announce(int ranks, const std::set<int>& newcomers) {
  Announcement& last = membership_.announcement;
  const bool nothing_new = last.ranks == ranks && last.newcomers == newcomers;
  const bool never_told =
      last.ranks == 0 && newcomers.empty() && ranks == count(&Placement::member);
  if (nothing_new || never_told) return;
  last = {last.number + 1, ranks, newcomers};
}

}  // namespace internal

Membership next_membership(const Membership& membership, const std::vector<NodeReport>& nodes,
                           const MembershipPolicy& policy, bool last_call) {
  internal::MembershipUpdate update(membership, nodes, policy);
  update.note_checkpoint();
  if (!membership.end.empty()) return std::move(update).result();
  update.take_requests();
  const int count = update.count_nodes();
  if (membership.formed) {
    update.go_on();
  } else if (!update.has_ended() &&
             (count >= policy.max_nodes || (count >= policy.min_nodes && last_call))) {
    update.form();
  }
  return std::move(update).result();
}

}  // namespace weft::launch
