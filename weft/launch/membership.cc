// The next plan: the order of its parts, and how the number of ranks changes. Lost ranks are in
// internal/losses.cc, nodes that leave in internal/successors.cc, parameter servers in
// internal/placing_servers.cc.
//
// The agent of each node computes the next plan from the plan so far and the reports, and offers it
// to the store by compare-and-set. So nothing here reads a clock, and all containers are ordered:
// equal inputs give equal plans. An agent whose offer comes second reads again, and computes from
// the plan that won.
//
// A placement has an incarnation that no other placement has. A report counts only for its
// incarnation, so an older process of the same rank changes nothing. The plan believes what nodes
// report, and never assumes that a rank has done what it was placed for:
//
//   placed ──> kStarting ──> kWaiting ──> kMember      (reports of the node)
//                                            └─ note_members() sets Placement::member
//
// go_on() then works in this order: joined ranks, faults that end the job, nodes that fail too
// often, processes that replace ranks of leaving nodes, lost ranks, servers. It changes the number
// of ranks only if nothing else is under way. So the ranks form their group again for one change at
// a time.
#include "weft/launch/membership.h"

#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/launch/internal/planning.h"

namespace weft::launch {
namespace internal {

void Planning::form() {
  int rank = 0, used = 0;
  for (const auto& [number, node] : nodes_) {
    if (is_unused(number)) continue;
    if (used++ == policy_.max_nodes) break;
    for (int slot = 0; slot < node->slots && rank < most_ranks(); ++slot)
      plan_.ranks[rank++] = {.node = number, .incarnation = ++plan_.incarnations, .first = true};
  }
  plan_.formed = true;
  place_servers();
}

void Planning::note_checkpoint() {
  for (const auto& [number, node] : nodes_) {
    if (node->saved.serial > plan_.saved.serial) plan_.saved = node->saved;
  }
}

void Planning::take_requests() {
  for (const auto& [number, node] : nodes_) {
    if (node->wanted.serial > plan_.wanted.serial) {
      plan_.wanted = node->wanted;
      plan_.never_joined = 0;
      note("the job shall have " + counted(plan_.wanted.ranks, "rank"));
    }
    if (!node->run.empty()) plan_.run = node->run;
    if (!node->stop.why.empty() && !plan_.done) stop(node->stop, number);
    if (node->usable) plan_.usable = *node->usable;
  }
  if (!plan_.done && plan_.end.empty()) let_nodes_leave();
}

void Planning::go_on() {
  note_members();
  plan_.done = plan_.done || any(RankPhase::kDone);
  if (plan_.done || !plan_.end.empty()) return plan_.successors.clear();
  end_if_failed();
  end_if_servers_are_lost();
  if (plan_.end.empty()) set_aside();
  if (plan_.end.empty()) prepare_successors();
  if (plan_.end.empty()) replace_lost();
  if (plan_.end.empty()) place_servers();
  if (plan_.end.empty() && !recovers() && plan_.successors.empty()) resize();
}

int Planning::free_slots(const NodeReport& at) const {
  const auto is_here = [&](const auto& rank) { return rank.second.node == at.node; };
  const auto used = std::count_if(plan_.ranks.begin(), plan_.ranks.end(), is_here) +
                    std::count_if(plan_.successors.begin(), plan_.successors.end(), is_here);
  return is_unused(at.node) ? 0 : std::max(0, at.slots - static_cast<int>(used));
}

const NodeReport* Planning::place() const {
  const NodeReport* best = nullptr;
  for (const auto& [number, at] : nodes_) {
    if (free_slots(*at) > (best != nullptr ? free_slots(*best) : 0)) best = at;
  }
  return best;
}

void Planning::stop(const StopRequest& request, int number) {
  if (!plan_.end.empty()) return;
  end("stopped by " + request.why, request.code);
  plan_.stop = request;
  plan_.stop_node = number;
}

void Planning::let_nodes_leave() {
  std::erase_if(plan_.leaving, [&](int number) { return node(number) == nullptr; });
  std::vector<const NodeReport*> asking;
  for (const auto& [number, at] : nodes_) {
    if (!at->leave.why.empty() && !plan_.leaving.contains(number)) asking.push_back(at);
  }
  const bool has_begun = plan_.ranks.empty() || count(&Placement::member) > 0;
  // While the first group forms, the loss of a rank would start all of them again. The request
  // waits.
  if (asking.empty() || !has_begun) return;
  const NodeReport& first = *asking.front();
  if (!can_go_on_without(asking)) return stop(first.leave, first.node);
  if (recovers() || !plan_.leaving.empty()) return;
  plan_.leaving.insert(first.node);
  note("node " + std::to_string(first.node) + " (" + first.host + ") leaves");
}

bool Planning::can_go_on_without(const std::vector<const NodeReport*>& asking) const {
  Planning trial = *this;
  for (const NodeReport* const at : asking) {
    if (at->holds_store) return false;
    trial.plan_.leaving.insert(at->node);
    if (loses_a_shard_without({at->node})) return false;
  }
  // Tried on a copy. The answer is no if the copy ends, or if it starts all ranks again.
  trial.replace_lost();
  return trial.plan_.end.empty() && trial.plan_.attempt == plan_.attempt;
}

void Planning::note_members() {
  std::erase_if(plan_.ranks,
                [&](const auto& entry) { return is(entry.first, entry.second, RankPhase::kLeft); });
  for (auto& [rank, place] : plan_.ranks) {
    const bool joins = is(rank, place, RankPhase::kMember) || is(rank, place, RankPhase::kDone);
    if (!joins || (place.member && !place.replaces)) continue;
    place.member = true;
    place.replaces = false;
    if (!place.first) plan_.never_joined = 0;
  }
}

void Planning::end_if_failed() {
  for (const auto& [rank, place] : plan_.ranks) {
    // Its successor has taken its place in the group.
    if (plan_.successors.contains(rank)) continue;
    if (is(rank, place, RankPhase::kFailed))
      end(rank_name(rank) + " failed first: " + report(rank, place)->why,
          report(rank, place)->code);
  }
}

std::optional<Placement> Planning::next_place(bool replaces) {
  const NodeReport* const at = place();
  if (at == nullptr || plan_.never_joined >= kMaxNeverJoined) return std::nullopt;
  return Placement{.node = at->node,
                   .incarnation = ++plan_.incarnations,
                   .replaces = replaces,
                   .tries = plan_.never_joined};
}

bool Planning::put(int rank, bool replaces) {
  const auto place = next_place(replaces);
  if (!place) return false;
  plan_.ranks[rank] = *place;
  plan_.gone.erase(rank);
  return true;
}

void Planning::set_aside() {
  std::erase_if(plan_.aside, [&](int number) {
    const NodeReport* const at = node(number);
    return at == nullptr || at->failures < kMaxFailures;
  });
  for (const auto& [number, at] : nodes_) {
    if (at->failures < kMaxFailures || plan_.aside.contains(number)) continue;
    int here = 0, elsewhere = 0;
    for (const auto& [rank, place] : plan_.ranks) here += place.node == number;
    for (const auto& [other, report] : nodes_) {
      if (other != number) elsewhere += free_slots(*report);
    }
    if (elsewhere < here) continue;
    plan_.aside.insert(number);
    note("node " + std::to_string(number) + " (" + at->host +
         ") gets no ranks: " + std::to_string(at->failures) + " failed there in ten minutes");
  }
}

bool Planning::recovers() const {
  return std::any_of(plan_.ranks.begin(), plan_.ranks.end(), [](const auto& entry) {
    return entry.second.replaces || (entry.second.first && !entry.second.member);
  });
}

void Planning::resize() {
  const int members = count(&Placement::member);
  std::set<int> coming;
  for (const auto& [rank, place] : plan_.ranks) {
    if (!place.member) coming.insert(rank);
  }
  grow(members, coming);
  const bool all_wait = std::all_of(coming.begin(), coming.end(), [&](int rank) {
    return is(rank, plan_.ranks.at(rank), RankPhase::kWaiting);
  });
  if (members > most_ranks()) {
    // The mesh cannot use fewer ranks than its multiple: the job then keeps its members.
    const int most = std::max(most_ranks(), policy_.min_ranks);
    return announce(most < plan_.usable.multiple ? members : plan_.usable.most(most), {});
  }
  const int next = plan_.usable.most(members + static_cast<int>(coming.size()));
  if (all_wait && next > members) return announce(next, coming);
  announce(members < plan_.usable.multiple ? members : plan_.usable.most(members), {});
}

void Planning::grow(int members, std::set<int>& coming) {
  const int here = members + static_cast<int>(coming.size());
  int places = 0;
  for (const auto& [number, at] : nodes_) places += free_slots(*at);
  // A lost rank that comes back counts as a replacement, unless somebody asked for this number.
  // Without a replacement its place stays empty.
  const bool is_asked = plan_.wanted.serial > 0;
  const int left = is_asked ? kNoLimit : policy_.max_replacements - plan_.replacements;
  const auto lost = std::distance(plan_.gone.begin(), plan_.gone.lower_bound(most_ranks()));
  const int most = most_ranks() - std::max(0, static_cast<int>(lost) - left);
  int room = plan_.usable.most(std::min(most, here + places)) - here;
  for (int rank = 0; room > 0; ++rank) {
    if (plan_.ranks.contains(rank)) continue;
    const bool replaces = !is_asked && plan_.gone.contains(rank);
    if (replaces && plan_.replacements >= policy_.max_replacements) continue;
    if (!put(rank, false)) return;
    plan_.replacements += replaces ? 1 : 0;
    note(rank_name(rank) + " is added on node " + std::to_string(plan_.ranks.at(rank).node));
    coming.insert(rank);
    --room;
  }
}

void Planning::announce(int ranks, const std::set<int>& newcomers) {
  Announcement& last = plan_.announcement;
  const bool nothing_new = last.ranks == ranks && last.newcomers == newcomers;
  const bool never_told =
      last.ranks == 0 && newcomers.empty() && ranks == count(&Placement::member);
  if (nothing_new || never_told) return;
  last = {last.number + 1, ranks, newcomers};
}

}  // namespace internal

JobPlan next_plan(const JobPlan& plan, const std::vector<NodeReport>& nodes,
                  const MembershipPolicy& policy, bool last_call) {
  internal::Planning planning(plan, nodes, policy);
  planning.note_checkpoint();
  if (!plan.end.empty()) return std::move(planning).result();
  planning.take_requests();
  const int count = planning.count_nodes();
  if (plan.formed) {
    planning.go_on();
  } else if (!planning.has_ended() &&
             (count >= policy.max_nodes || (count >= policy.min_nodes && last_call))) {
    planning.form();
  }
  return std::move(planning).result();
}

}  // namespace weft::launch
