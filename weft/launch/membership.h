// The ranks of a job on several nodes: which there are, on which node, and how their number
// changes. Pure functions of what the nodes report; the agents (internal/agent.h) execute them.
//
//   node reports (kept while the node's agent lives) ──┐
//   the plan so far ───────────────────────────────────┴─ next_plan() ─► compare and set ─► agents
//
// Every agent computes the next plan. The store accepts one of them, so all agents follow the same
// one. A part of the nodes without a majority cannot change the store, and so cannot go on.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::launch {

// A rank as its node sees it.
enum class RankPhase {
  kStarting,  // It was started and is not part of the group yet.
  kWaiting,   // It waits to be added to the group.
  kMember,    // It is part of the group.
  kLost,      // It ended, and its node does not replace it.
  kLeft,      // It ended because the job shrinks.
  kDone,      // It ended with success.
};

struct RankReport {
  int incarnation = 0;  // of the plan's placement that the node has started
  RankPhase phase = RankPhase::kStarting;
  bool operator==(const RankReport&) const = default;
};

struct NodeReport {
  int node = 0;  // number of the node, in the order of joining
  std::string host;
  int slots = 1;        // ranks that it can run
  int failures = 0;     // ranks that failed on it in the last ten minutes
  bool drains = false;  // it is about to end, so its ranks leave
  std::map<int, RankReport> ranks;
  bool operator==(const NodeReport&) const = default;
};

struct Placement {
  int node = 0;
  int incarnation = 0;
  bool member = false;    // it was part of the group
  bool replaces = false;  // the others wait for it, since it replaces a lost rank
  bool operator==(const Placement&) const = default;
};

// What the ranks are told: their number, which ranks wait to be added, and which leave.
struct Announcement {
  int number = 0;  // counts announcements
  int ranks = 0;   // 0: it has been followed
  std::set<int> newcomers, leaving;
  bool operator==(const Announcement&) const = default;
};

struct JobPlan {
  bool formed = false;  // the first ranks have their places
  int wanted = 0;       // ranks asked for (weft scale); 0: as many as fit
  int replacements = 0;
  std::map<int, Placement> ranks;
  std::map<int, int> incarnations;  // of each rank, the highest so far
  std::set<int> gone;               // ranks that were lost and have no place
  std::set<int> aside;              // nodes that get no ranks, since they failed too often
  Announcement announcement;
  std::string end;  // why the job ends; empty: it goes on
  bool operator==(const JobPlan&) const = default;
};

struct MembershipPolicy {
  int min_nodes = 1, max_nodes = 1;
  int min_ranks = 0;  // go on with so many; 0: every lost rank must be replaced
  int max_ranks = 0;  // 0: the ranks of max_nodes nodes
  int max_replacements = 0;
};

// A node with so many failures in ten minutes is set aside, if the others can take its ranks.
constexpr int kMostFailures = 3;

// The next plan; the same one if nothing changes. `nodes`: the reports of the nodes that live.
// `last_call`: the time to wait for more than min_nodes nodes is over.
JobPlan next_plan(const JobPlan& plan, const std::vector<NodeReport>& nodes,
                  const MembershipPolicy& policy, bool last_call);

// As text, for the store. The inverse functions throw Error(kCorrupt).
std::string to_text(const NodeReport& report);
std::string to_text(const JobPlan& plan);
NodeReport node_report_of(const std::string& text);
JobPlan job_plan_of(const std::string& text);

}  // namespace weft::launch
