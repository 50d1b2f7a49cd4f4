// How the launcher of a node follows the job's membership on several nodes (membership.h): it runs
// the ranks that the membership places on this node, and reports how they are.
//
//   Follower ══ AgentProcess ── agent ── store ── agents of other nodes
#pragma once

#include <poll.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/internal/agent_process.h"
#include "weft/launch/internal/departures.h"
#include "weft/launch/internal/job_store_process.h"
#include "weft/launch/internal/node.h"
#include "weft/launch/internal/orders.h"
#include "weft/launch/internal/servers.h"
#include "weft/launch/internal/starter.h"

namespace weft::launch::internal {

class Follower {
 public:
  // Starts the node's store process and agent.
  Follower(Node& node, Starter& starter, Departures& departures, Servers& servers);

  void watch(std::vector<pollfd>& watched) const;
  // When follow() has to be called next, besides events.
  std::optional<Time> next() const { return follow_at_; }
  // Does what the membership says now.
  void follow();
  // The process that cleans up after a killed launcher has ended: starts another one.
  void renew_guard();
  // Adds what a rank has told to the node's report.
  void note_phase(int local, const rank_link::RankMessage& message);

  const Membership& membership() const { return orders_.membership; }
  bool is_over() const { return orders_.is_over(); }
  // The other nodes can go on if this one leaves.
  bool others_can_go_on() const;
  // Answers a request for this number of ranks. nullopt: the answer follows when the job has them.
  std::optional<std::string> answer(int ranks);
  // After the last rank has ended: prints why the job ended, and returns the exit code. nullopt:
  // the membership does not know.
  std::optional<int> end() const;

 private:
  struct Slot {
    int incarnation = 0;
    RankPhase phase = RankPhase::kStarting;
    bool dropped = false, counted = false;
  };

  StoreProcess::Options guarding() const;
  void run_servers();
  void on_agent(const AgentMessage& message);
  void drop_placements();
  void end_alone(const Over& over);
  void take(NodeOrders orders);
  void take_end(const Membership& membership);
  void note_run(const Membership& membership);
  bool is_placed(std::size_t at) const;
  void drop_ranks();
  std::optional<Time> start_placed(Time at);
  bool waits_for_others(const Placement& place) const;
  std::optional<std::size_t> free_slot() const;
  bool start_in(std::size_t slot, int rank, const Placement& place);
  RankReport state_of(std::size_t at, Time when, std::optional<Time>& next);
  std::optional<Time> make_report(Time at);

  Node& node_;
  Starter& starter_;
  Departures& departures_;
  Servers& servers_;
  std::optional<JobStoreProcess> store_;
  std::optional<AgentProcess> agent_;
  NodeOrders orders_;
  NodeReport report_;
  std::vector<Slot> slots_;     // by local rank
  std::map<int, Time> due_;     // by incarnation: when to start it
  std::vector<Time> failures_;  // of ranks of this node
  std::optional<Time> follow_at_;
  Time renew_guard_at_{};  // not before
  int last_note_ = 0, announced_ = 0;
  bool left_alone_ = false;  // the agent has given up
};

}  // namespace weft::launch::internal
