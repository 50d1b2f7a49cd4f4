#include "weft/launch/membership.h"

#include <algorithm>
#include <optional>

#include "weft/base/error.h"

namespace weft::launch {
namespace {

constexpr std::size_t kMostNotes = 16;

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

// One computation of the next plan.
class Planning {
 public:
  Planning(const JobPlan& plan, const std::vector<NodeReport>& nodes,
           const MembershipPolicy& policy)
      : plan_(plan), policy_(policy) {
    for (const NodeReport& node : nodes) nodes_.emplace(node.node, &node);
  }

  // The first ranks of an attempt, by node.
  void form() {
    int rank = 0, used = 0;
    for (const auto& [number, node] : nodes_) {
      if (is_unused(number)) continue;
      if (used++ == policy_.max_nodes) break;
      for (int slot = 0; slot < node->slots && rank < most_ranks(); ++slot)
        plan_.ranks[rank++] = {.node = number, .incarnation = ++plan_.incarnations, .first = true};
    }
    plan_.formed = true;
  }

  // Also when the job ends: ranks save a checkpoint then.
  void note_checkpoint() {
    for (const auto& [number, node] : nodes_) {
      if (node->saved.serial > plan_.saved.serial) plan_.saved = node->saved;
    }
  }

  void take_requests() {
    for (const auto& [number, node] : nodes_) {
      if (node->wanted.serial > plan_.wanted.serial) {
        plan_.wanted = node->wanted;
        plan_.never_joined = 0;
        note("the job shall have " + std::to_string(plan_.wanted.ranks) + " ranks");
      }
      if (!node->run.empty()) plan_.run = node->run;
      if (!node->stop.why.empty() && !plan_.done) stop(node->stop, number);
    }
    if (!plan_.done && plan_.end.empty()) let_nodes_leave();
  }

  // Nodes that do not leave.
  int count_nodes() const { return static_cast<int>(nodes_.size() - plan_.leaving.size()); }

  void go_on() {
    note_members();
    plan_.done = plan_.done || any(RankPhase::kDone);
    if (plan_.done || !plan_.end.empty()) return;
    end_if_failed();
    if (plan_.end.empty()) set_aside();
    if (plan_.end.empty()) replace_lost();
    if (plan_.end.empty() && !recovers()) resize();
  }

  bool has_ended() const { return !plan_.end.empty(); }
  JobPlan result() && { return std::move(plan_); }

 private:
  const NodeReport* node(int number) const {
    const auto found = nodes_.find(number);
    return found != nodes_.end() ? found->second : nullptr;
  }
  // What the rank's node says of its placement; null if the node is gone or has not started it.
  const RankReport* report(int rank, const Placement& place) const {
    const NodeReport* const at = node(place.node);
    if (at == nullptr) return nullptr;
    const auto found = at->ranks.find(rank);
    const bool same = found != at->ranks.end() && found->second.incarnation == place.incarnation;
    return same ? &found->second : nullptr;
  }
  bool is(int rank, const Placement& place, RankPhase phase) const {
    const RankReport* const said = report(rank, place);
    return said != nullptr && said->phase == phase;
  }
  bool any(RankPhase phase) const {
    return std::any_of(plan_.ranks.begin(), plan_.ranks.end(),
                       [&](const auto& entry) { return is(entry.first, entry.second, phase); });
  }
  int count(bool Placement::*flag) const {
    return static_cast<int>(std::count_if(plan_.ranks.begin(), plan_.ranks.end(),
                                          [&](const auto& one) { return one.second.*flag; }));
  }
  int most_ranks() const {
    return plan_.wanted.serial > 0 ? plan_.wanted.ranks : policy_.max_ranks;
  }
  int free_slots(const NodeReport& at) const {
    const auto used = std::count_if(plan_.ranks.begin(), plan_.ranks.end(),
                                    [&](const auto& rank) { return rank.second.node == at.node; });
    return is_unused(at.node) ? 0 : std::max(0, at.slots - static_cast<int>(used));
  }
  bool is_unused(int number) const {
    return plan_.aside.contains(number) || plan_.leaving.contains(number);
  }
  // The usable node with most free slots; of several the one that joined first.
  const NodeReport* place() const {
    const NodeReport* best = nullptr;
    for (const auto& [number, at] : nodes_) {
      if (free_slots(*at) > (best != nullptr ? free_slots(*best) : 0)) best = at;
    }
    return best;
  }

  void note(const std::string& text) {
    const int number = plan_.notes.empty() ? 1 : plan_.notes.rbegin()->first + 1;
    plan_.notes.emplace(number, text);
    if (plan_.notes.size() > kMostNotes) plan_.notes.erase(plan_.notes.begin());
  }
  void end(const std::string& why, int code) {
    if (!plan_.end.empty()) return;
    plan_.end = why;
    plan_.end_code = code;
  }

  void stop(const StopRequest& request, int number) {
    if (!plan_.end.empty()) return;
    end("stopped by " + request.why, request.code);
    plan_.stop = request;
    plan_.stop_node = number;
  }

  // Nodes that ask to leave do so one after another: two may keep each other's copies of the state,
  // and the store needs a majority. If the job cannot go on without all of them, it ends.
  void let_nodes_leave() {
    std::erase_if(plan_.leaving, [&](int number) { return node(number) == nullptr; });
    std::vector<const NodeReport*> asking;
    for (const auto& [number, at] : nodes_) {
      if (!at->leave.why.empty() && !plan_.leaving.contains(number)) asking.push_back(at);
    }
    const bool has_begun = plan_.ranks.empty() || count(&Placement::member) > 0;
    if (asking.empty() || !has_begun) return;
    const NodeReport& first = *asking.front();
    if (!can_go_on_without(asking)) return stop(first.leave, first.node);
    if (recovers() || !plan_.leaving.empty()) return;
    plan_.leaving.insert(first.node);
    note("node " + std::to_string(first.node) + " (" + first.host + ") leaves");
  }
  bool can_go_on_without(const std::vector<const NodeReport*>& asking) const {
    Planning trial = *this;
    for (const NodeReport* const at : asking) {
      if (at->holds_store) return false;
      trial.plan_.leaving.insert(at->node);
    }
    trial.replace_lost();
    return trial.plan_.end.empty() && trial.plan_.attempt == plan_.attempt;
  }

  void note_members() {
    std::erase_if(plan_.ranks, [&](const auto& entry) {
      return is(entry.first, entry.second, RankPhase::kLeft);
    });
    for (auto& [rank, place] : plan_.ranks) {
      const bool joins = is(rank, place, RankPhase::kMember) || is(rank, place, RankPhase::kDone);
      if (!joins || (place.member && !place.replaces)) continue;
      place.member = true;
      place.replaces = false;
      if (!place.first) plan_.never_joined = 0;
    }
  }

  void end_if_failed() {
    for (const auto& [rank, place] : plan_.ranks) {
      if (is(rank, place, RankPhase::kFailed))
        end(rank_name(rank) + " failed first: " + report(rank, place)->why,
            report(rank, place)->code);
    }
  }

  // A place for a rank, on the usable node with most free slots.
  bool put(int rank, bool replaces) {
    const NodeReport* const at = place();
    if (at == nullptr || plan_.never_joined >= kMostLostNewcomers) return false;
    plan_.ranks[rank] = {.node = at->node,
                         .incarnation = ++plan_.incarnations,
                         .replaces = replaces,
                         .tries = plan_.never_joined};
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
      if (elsewhere < here) continue;
      plan_.aside.insert(number);
      note("node " + std::to_string(number) + " (" + at->host +
           ") gets no ranks: " + std::to_string(at->failures) + " failed there in ten minutes");
    }
  }

  bool is_lost(int rank, const Placement& place) const {
    return node(place.node) == nullptr || is_unused(place.node) ||
           is(rank, place, RankPhase::kLost) || is(rank, place, RankPhase::kRefused);
  }
  std::string loss(int rank, const Placement& place) const {
    if (plan_.leaving.contains(place.node))
      return rank_name(rank) + " leaves with node " + std::to_string(place.node);
    const std::string name = rank_name(rank) + " is lost";
    const RankReport* const said = report(rank, place);
    if (node(place.node) == nullptr)
      return name + ": node " + std::to_string(place.node) + " is lost or cannot be reached";
    return name + (said != nullptr && !said->why.empty() ? ": " + said->why : "");
  }
  int code_of(int rank, const Placement& place) const {
    const RankReport* const said = report(rank, place);
    return said != nullptr && said->code != 0 ? said->code : exit_code(Errc::kPeerLost);
  }

  void replace_lost() {
    std::vector<int> lost;
    for (const auto& [rank, place] : plan_.ranks) {
      if (is_lost(rank, place)) lost.push_back(rank);
    }
    if (lost.empty()) return;
    const bool survives =
        std::any_of(plan_.ranks.begin(), plan_.ranks.end(), [&](const auto& entry) {
          return entry.second.member && !is_lost(entry.first, entry.second);
        });
    if (!survives) return start_again(lost);
    for (const int rank : lost) replace(rank);
  }

  void replace(int rank) {
    const Placement was = plan_.ranks.at(rank);
    const std::string text = loss(rank, was);
    const int code = code_of(rank, was);
    const bool is_missed = was.member || was.replaces || was.first;
    const bool refused = is(rank, was, RankPhase::kRefused);
    if (!was.member && !was.first && !plan_.leaving.contains(was.node)) ++plan_.never_joined;
    plan_.ranks.erase(rank);
    plan_.gone.insert(rank);
    // An additional rank that is lost is placed again when the job grows.
    if (is_missed && !refused && plan_.replacements < policy_.max_replacements && put(rank, true)) {
      ++plan_.replacements;
      return note(text + "; a new process on node " + std::to_string(plan_.ranks.at(rank).node) +
                  " replaces it" + count_of_replacements());
    }
    if (refused) plan_.never_joined = kMostLostNewcomers;
    if (is_missed) check_enough(text, code);
    if (plan_.end.empty()) note(text + "; the others go on without it");
  }

  std::string count_of_replacements() const {
    if (policy_.max_replacements > 1'000'000) return "";
    return " (" + std::to_string(plan_.replacements) + " of " +
           std::to_string(policy_.max_replacements) + ")";
  }

  void check_enough(const std::string& text, int code) {
    const auto left = std::count_if(plan_.ranks.begin(), plan_.ranks.end(), [](const auto& entry) {
      return entry.second.member || entry.second.replaces;
    });
    if (policy_.min_ranks > 0 && left >= policy_.min_ranks) return;
    end(text + (policy_.min_ranks > 0 ? "; fewer than " + std::to_string(policy_.min_ranks) +
                                            " ranks are left (--min-ranks)"
                                      : "; it cannot be replaced"),
        code);
  }

  // No rank is left that has the job's state: all ranks start again, from the newest checkpoint.
  void start_again(const std::vector<int>& lost) {
    const int first = lost.front();
    const Placement& place = plan_.ranks.at(first);
    const std::string text = loss(first, place);
    if (!may_start_again(lost)) return end(text, code_of(first, place));
    JobPlan again = plan_;
    again.ranks.clear();
    again.gone.clear();
    again.announcement = {plan_.announcement.number, 0, {}};
    const int before = static_cast<int>(plan_.ranks.size());
    std::swap(plan_, again);
    form();
    const int least = policy_.min_ranks > 0 ? policy_.min_ranks : before;
    if (static_cast<int>(plan_.ranks.size()) < least) {
      plan_ = again;
      return end(text + "; too few nodes are left to start all ranks again",
                 exit_code(Errc::kPeerLost));
    }
    ++plan_.attempt;
    ++plan_.replacements;
    note(text + "; no rank is left that has the job's state: starting all ranks again" +
         (plan_.run.empty() ? "" : ", from the newest checkpoint") + count_of_replacements());
  }

  // A node that cannot be reached may still run its ranks. They cannot go on without one of the
  // group that is lost for certain: its own node says so.
  bool may_start_again(const std::vector<int>& lost) const {
    if (plan_.replacements >= policy_.max_replacements || plan_.attempt >= kMostAttempts)
      return false;
    const bool had_members = count(&Placement::member) > 0;
    bool certain = false;
    for (const auto& [rank, place] : plan_.ranks) {
      if (had_members && !place.member) continue;
      certain = certain || node(place.node) != nullptr;
    }
    // A program that fails by itself before it trains would fail again.
    const bool would_fail_again = std::any_of(lost.begin(), lost.end(), [&](int rank) {
      const RankReport* const said = report(rank, plan_.ranks.at(rank));
      return said != nullptr && said->phase >= RankPhase::kLost &&
             (said->code < 128 || plan_.run.empty());
    });
    return certain && !would_fail_again;
  }

  // True while the ranks form their group, or form it again.
  bool recovers() const {
    return std::any_of(plan_.ranks.begin(), plan_.ranks.end(), [](const auto& entry) {
      return entry.second.replaces || (entry.second.first && !entry.second.member);
    });
  }

  void resize() {
    const int members = count(&Placement::member);
    std::set<int> coming;
    for (const auto& [rank, place] : plan_.ranks) {
      if (!place.member) coming.insert(rank);
    }
    grow(members, coming);
    const bool all_wait = std::all_of(coming.begin(), coming.end(), [&](int rank) {
      return is(rank, plan_.ranks.at(rank), RankPhase::kWaiting);
    });
    if (members > most_ranks()) return announce(std::max(most_ranks(), policy_.min_ranks), {});
    if (all_wait && !coming.empty())
      return announce(members + static_cast<int>(coming.size()), coming);
    announce(members, {});
  }

  void grow(int members, std::set<int>& coming) {
    int more = most_ranks() - members - static_cast<int>(coming.size());
    for (int rank = 0; more > 0; ++rank) {
      if (plan_.ranks.contains(rank)) continue;
      const bool replaces = plan_.gone.contains(rank) && plan_.wanted.serial == 0;
      if (replaces && plan_.replacements >= policy_.max_replacements) {
        --more;  // its place stays empty
        continue;
      }
      if (!put(rank, false)) return;
      plan_.replacements += replaces ? 1 : 0;
      note(rank_name(rank) + " is added on node " + std::to_string(plan_.ranks.at(rank).node));
      coming.insert(rank);
      --more;
    }
  }

  void announce(int ranks, const std::set<int>& newcomers) {
    Announcement& last = plan_.announcement;
    const bool nothing_new = last.ranks == ranks && last.newcomers == newcomers;
    const bool never_told =
        last.ranks == 0 && newcomers.empty() && ranks == count(&Placement::member);
    if (nothing_new || never_told) return;
    last = {last.number + 1, ranks, newcomers};
  }

  JobPlan plan_;
  const MembershipPolicy& policy_;
  std::map<int, const NodeReport*> nodes_;
};

}  // namespace

JobPlan next_plan(const JobPlan& plan, const std::vector<NodeReport>& nodes,
                  const MembershipPolicy& policy, bool last_call) {
  Planning planning(plan, nodes, policy);
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
