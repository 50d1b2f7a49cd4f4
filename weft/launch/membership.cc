#include "weft/launch/membership.h"

#include <algorithm>
#include <optional>

namespace weft::launch {
namespace {

// One computation of the next plan.
class Planning {
 public:
  Planning(const JobPlan& plan, const std::vector<NodeReport>& nodes,
           const MembershipPolicy& policy)
      : plan_(plan), policy_(policy) {
    for (const NodeReport& node : nodes) nodes_.emplace(node.node, &node);
  }

  // The first ranks, by node.
  void form() {
    int rank = 0, used = 0;
    for (const auto& [number, node] : nodes_) {
      if (used++ == policy_.max_nodes) break;
      for (int slot = 0; slot < node->slots && rank < most_ranks(); ++slot)
        plan_.ranks[rank++] = {.node = number};
    }
    plan_.formed = true;
  }

  void go_on() {
    if (any(RankPhase::kDone)) return;  // the program ends
    note_members();
    set_aside();
    replace_lost();
    if (!plan_.end.empty() || recovers()) return;
    if (!shrink()) grow();
  }

  JobPlan result() && { return std::move(plan_); }

 private:
  const NodeReport* node(int number) const {
    const auto found = nodes_.find(number);
    return found != nodes_.end() ? found->second : nullptr;
  }
  // What the rank's node says of its placement; none if the node is gone or has not started it.
  std::optional<RankPhase> phase(int rank, const Placement& place) const {
    const NodeReport* const at = node(place.node);
    if (at == nullptr) return std::nullopt;
    const auto report = at->ranks.find(rank);
    if (report == at->ranks.end() || report->second.incarnation != place.incarnation)
      return std::nullopt;
    return report->second.phase;
  }
  bool any(RankPhase wanted) const {
    return std::any_of(plan_.ranks.begin(), plan_.ranks.end(), [&](const auto& entry) {
      return phase(entry.first, entry.second) == wanted;
    });
  }
  int most_ranks() const {
    int most = policy_.max_ranks > 0 ? policy_.max_ranks : 1 << 20;
    if (plan_.wanted > 0) most = std::min(most, plan_.wanted);
    return most;
  }
  bool is_usable(const NodeReport& at) const {
    return !at.drains && !plan_.aside.contains(at.node);
  }
  int free_slots(const NodeReport& at) const {
    const auto used = std::count_if(plan_.ranks.begin(), plan_.ranks.end(),
                                    [&](const auto& rank) { return rank.second.node == at.node; });
    return is_usable(at) ? std::max(0, at.slots - static_cast<int>(used)) : 0;
  }
  // The usable node with most free slots; of several the one that joined first.
  const NodeReport* place() const {
    const NodeReport* best = nullptr;
    for (const auto& [number, at] : nodes_) {
      if (free_slots(*at) > (best != nullptr ? free_slots(*best) : 0)) best = at;
    }
    return best;
  }

  void note_members() {
    std::erase_if(plan_.ranks, [&](const auto& entry) {
      return phase(entry.first, entry.second) == RankPhase::kLeft;
    });
    for (auto& [rank, place] : plan_.ranks) {
      if (phase(rank, place) != RankPhase::kMember) continue;
      place.member = true;
      place.replaces = false;
    }
    Announcement& told = plan_.announcement;
    const auto has_joined = [&](int rank) {
      return !plan_.ranks.contains(rank) || plan_.ranks.at(rank).member;
    };
    const auto has_left = [&](int rank) { return !plan_.ranks.contains(rank); };
    if (std::all_of(told.newcomers.begin(), told.newcomers.end(), has_joined) &&
        std::all_of(told.leaving.begin(), told.leaving.end(), has_left))
      told = {told.number, 0, {}, {}};
  }

  // A place for a rank: its next incarnation, on the usable node with most free slots.
  bool put(int rank, bool replaces) {
    const NodeReport* const at = place();
    if (at == nullptr) return false;
    plan_.ranks[rank] = {
        .node = at->node, .incarnation = ++plan_.incarnations[rank], .replaces = replaces};
    plan_.gone.erase(rank);
    return true;
  }

  void set_aside() {
    std::erase_if(plan_.aside, [&](int number) {
      const NodeReport* const at = node(number);
      return at == nullptr || at->failures < kMostFailures;
    });
    for (const auto& [number, at] : nodes_) {
      if (at->failures < kMostFailures || plan_.aside.contains(number)) continue;
      int here = 0, elsewhere = 0;
      for (const auto& [rank, place] : plan_.ranks) here += place.node == number;
      for (const auto& [other, report] : nodes_) {
        if (other != number) elsewhere += free_slots(*report);
      }
      if (elsewhere >= here) plan_.aside.insert(number);
    }
  }

  bool has_members() const {
    return std::any_of(plan_.ranks.begin(), plan_.ranks.end(),
                       [](const auto& entry) { return entry.second.member; });
  }

  bool is_lost(int rank, const Placement& place) const {
    return node(place.node) == nullptr || plan_.aside.contains(place.node) ||
           phase(rank, place) == RankPhase::kLost;
  }

  void replace_lost() {
    std::vector<int> lost;
    for (const auto& [rank, place] : plan_.ranks) {
      if (is_lost(rank, place)) lost.push_back(rank);
    }
    for (const int rank : lost) {
      const Placement was = plan_.ranks.at(rank);
      plan_.ranks.erase(rank);
      const bool is_missed = was.member || was.replaces || !has_members();
      if (plan_.replacements < policy_.max_replacements && put(rank, is_missed)) {
        ++plan_.replacements;
        continue;
      }
      plan_.gone.insert(rank);
      if (is_missed) check_enough(rank, was.node);
    }
  }

  void check_enough(int rank, int at) {
    const auto left = std::count_if(plan_.ranks.begin(), plan_.ranks.end(), [](const auto& entry) {
      return entry.second.member || entry.second.replaces;
    });
    if (policy_.min_ranks > 0 && left >= policy_.min_ranks) return;
    if (!plan_.end.empty()) return;
    plan_.end = "rank " + std::to_string(rank) + " of node " + std::to_string(at) +
                " is lost and cannot be replaced";
    if (policy_.min_ranks > 0)
      plan_.end += ", and fewer than " + std::to_string(policy_.min_ranks) + " ranks are left";
  }

  // True while the ranks form their group again.
  bool recovers() const {
    return std::any_of(plan_.ranks.begin(), plan_.ranks.end(),
                       [](const auto& entry) { return entry.second.replaces; });
  }

  // True if ranks must leave.
  bool shrink() {
    std::set<int> leaving;
    int members = 0;
    for (const auto& [rank, place] : plan_.ranks) {
      if (!place.member) continue;
      const NodeReport* const at = node(place.node);
      members += 1;
      if (at != nullptr && at->drains) leaving.insert(rank);
    }
    for (auto entry = plan_.ranks.rbegin(); entry != plan_.ranks.rend(); ++entry) {
      if (members - static_cast<int>(leaving.size()) <= most_ranks()) break;
      if (entry->second.member) leaving.insert(entry->first);
    }
    if (leaving.empty()) return false;
    const int left = members - static_cast<int>(leaving.size());
    // Additional ranks that wait would be added by the same announcement.
    if (left >= 1 && left >= policy_.min_ranks) announce(left, {}, leaving);
    return true;
  }

  void grow() {
    std::set<int> coming;
    int members = 0;
    for (const auto& [rank, place] : plan_.ranks) {
      members += place.member;
      if (!place.member) coming.insert(rank);
    }
    if (members == 0) return;  // the first group has not formed yet
    for (int rank = 0; members + static_cast<int>(coming.size()) < most_ranks(); ++rank) {
      if (plan_.ranks.contains(rank)) continue;
      if (!put(rank, false)) break;
      coming.insert(rank);
    }
    const bool all_wait = std::all_of(coming.begin(), coming.end(), [&](int rank) {
      return phase(rank, plan_.ranks.at(rank)) == RankPhase::kWaiting;
    });
    if (!coming.empty() && all_wait)
      announce(members + static_cast<int>(coming.size()), coming, {});
  }

  void announce(int ranks, const std::set<int>& newcomers, const std::set<int>& leaving) {
    Announcement& last = plan_.announcement;
    if (last.ranks == ranks && last.newcomers == newcomers && last.leaving == leaving) return;
    last = {last.number + 1, ranks, newcomers, leaving};
  }

  JobPlan plan_;
  const MembershipPolicy& policy_;
  std::map<int, const NodeReport*> nodes_;
};

}  // namespace

JobPlan next_plan(const JobPlan& plan, const std::vector<NodeReport>& nodes,
                  const MembershipPolicy& policy, bool last_call) {
  const int count = static_cast<int>(nodes.size());
  if (!plan.end.empty()) return plan;
  if (!plan.formed && (count < policy.min_nodes || (count < policy.max_nodes && !last_call)))
    return plan;
  Planning planning(plan, nodes, policy);
  if (plan.formed) {
    planning.go_on();
  } else {
    planning.form();
  }
  return std::move(planning).result();
}

}  // namespace weft::launch
