// One computation of the next membership (membership.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/launch/membership.h"

namespace weft::launch::internal {

inline std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

class MembershipUpdate {
 public:
  MembershipUpdate(const Membership& membership, const std::vector<NodeReport>& nodes,
                   const MembershipPolicy& policy)
      : membership_(membership),
        policy_(policy),
        last_note_(membership.notes.empty() ? 0 : membership.notes.rbegin()->first) {
    for (const NodeReport& node : nodes) nodes_.emplace(node.node, &node);
  }

  // The first ranks of an attempt, by node.
  void form();

  // Also when the job ends: ranks save a checkpoint then.
  void note_checkpoint();

  void take_requests();
  // Nodes that do not leave.
  int count_nodes() const { return static_cast<int>(nodes_.size() - membership_.leaving.size()); }

  void go_on();
  bool has_ended() const { return !membership_.end.empty(); }
  Membership result() && { return std::move(membership_); }

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
  // The facts of the launcher that decides by itself; null: agents decide.
  const OneNode* one_node() const {
    for (const auto& [number, at] : nodes_) {
      if (at->one_node) return &*at->one_node;
    }
    return nullptr;
  }
  bool is(int rank, const Placement& place, RankPhase phase) const {
    const RankReport* const said = report(rank, place);
    return said != nullptr && said->phase == phase;
  }
  bool any(RankPhase phase) const {
    return std::any_of(membership_.ranks.begin(), membership_.ranks.end(),
                       [&](const auto& entry) { return is(entry.first, entry.second, phase); });
  }
  int count(bool Placement::*flag) const {
    return static_cast<int>(std::count_if(membership_.ranks.begin(), membership_.ranks.end(),
                                          [&](const auto& one) { return one.second.*flag; }));
  }
  int most_ranks() const {
    return membership_.wanted.serial > 0 ? membership_.wanted.ranks : policy_.max_ranks;
  }
  int free_slots(const NodeReport& at) const;
  bool is_unused(int number) const {
    return membership_.aside.contains(number) || membership_.leaving.contains(number);
  }
  // The usable node with most free slots; of several the one that joined first. A node whose starts
  // fail only if no other one has a free slot.
  const NodeReport* place() const;

  void note(const std::string& text);
  void end(const std::string& why, int code) {
    if (!membership_.end.empty()) return;
    membership_.end = why;
    membership_.end_code = code;
  }

  void stop(const StopRequest& request, int number);
  // Nodes that ask to leave do so one after another: two may keep each other's copies of the state,
  // and the store needs a majority. If the job cannot go on without all of them, it ends.
  void let_nodes_leave();
  bool can_go_on_without(const std::vector<const NodeReport*>& asking) const;

  void note_members();
  void end_if_failed();
  // A place for a rank, on the usable node with most free slots; nullopt if there is none.
  std::optional<Placement> next_place(bool replaces);
  bool put(int rank, bool replaces);

  void set_aside();
  void move_unstarted();
  bool is_lost(int rank, const Placement& place) const;
  std::string loss(int rank, const Placement& place) const;
  int code_of(int rank, const Placement& place) const;
  // Nodes that leave (successors.cc): a process that replaces a rank of theirs loads before the
  // rank ends.
  bool is_ready(int rank, const Placement& successor) const;
  bool leaves_later(int rank, const Placement& place) const;
  void prepare_successors();
  void replace_lost();
  void replace(int rank);
  // One node: false if no replacement is left, or if new processes end or fail again and again.
  bool may_replace(const OneNode& own) const;
  // One node: a lost rank is replaced later, once a process can be started.
  bool waits_for_start(const std::vector<int>& lost) const;
  std::string count_of_replacements() const;
  // Ends the job if too few ranks are left.
  void check_enough(const std::string& text, int code);
  // Times that all ranks were started again since the last progress.
  int restores_so_far() const;
  // No rank is left that has the job's state: all ranks start again, from the newest checkpoint.
  void start_again(const std::vector<int>& lost);

  // Parameter servers (placing_servers.cc): each has a node, and neighbors are apart if possible.
  void place_servers();
  std::optional<int> node_for(int server) const;
  int neighbors_on(int number, int server) const;
  void separate_servers();
  bool loses_a_shard_without(const std::set<int>& nodes) const;
  void end_if_servers_are_lost();

  // A node that cannot be reached may still run its ranks. They cannot go on without one of the
  // group that is lost for certain: its own node says so.
  bool may_start_again(const std::vector<int>& lost) const;
  // One node: the program itself has failed, first of all.
  bool has_program_failed(const OneNode& own) const;

  // True until all of the first ranks have met. Nobody can take the place of one before.
  bool is_meeting() const {
    return std::any_of(membership_.ranks.begin(), membership_.ranks.end(), [](const auto& entry) {
      return entry.second.first && !entry.second.member;
    });
  }
  // True while the ranks form their group, or form it again.
  bool recovers() const;
  void resize();
  void grow(int members, std::set<int>& coming);
  void announce(int ranks, const std::set<int>& newcomers);

  Membership membership_;
  const MembershipPolicy& policy_;
  const int last_note_;  // of the changes before this one
  std::map<int, const NodeReport*> nodes_;
};

}  // namespace weft::launch::internal
