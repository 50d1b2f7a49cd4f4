// The agent of a node of a job on several nodes: a process beside the launcher. It keeps the node's
// report in the job's store, computes the job's membership with the agents of the other nodes
// (membership.h), and tells the launcher what the membership says for this node.
//
//   launcher ══ Link ══ agent ── store::Client ── weft_store ══ weft_store of other nodes
//     ──► report TEXT     NodeReport, whenever it changes
//     ◄── node N LEASE    number and lease of this node, for an agent that is started again
//     ◄── orders TEXT     NodeOrders, whenever they change
//     ◄── alone WHY       the store has not answered for kAloneAfter; the agent goes on asking
//     ◄── back            it answers again
//     ◄── fenced          the others took this node for lost: its ranks must end. It joins again
//     ◄── over CODE WHY   the node cannot take part (any more)
#pragma once

#include <chrono>
#include <string>

#include "weft/launch/membership.h"
#include "weft/rank_link/link.h"

namespace weft::launch::internal {

struct AgentOptions {
  std::string socket;  // of the node's store process
  std::string job;     // run id
  MembershipPolicy policy;
  // How long to wait until enough nodes are there, and then for more.
  std::chrono::milliseconds join_limit = std::chrono::seconds(600);
  std::chrono::milliseconds last_call = std::chrono::seconds(30);
  // A node that cannot reach the store for so long ends its ranks.
  std::chrono::milliseconds alone_limit = std::chrono::seconds(60);
  bool is_etcd = false;  // the store does not depend on this node
  // Of an agent before this one; -1: none.
  int node = -1;
  std::uint64_t lease = 0;
  bool had_orders = false;  // the launcher has had orders
};

// A node whose agent is silent for so long is lost.
constexpr auto kNodeLease = std::chrono::milliseconds(1500);
constexpr auto kAloneAfter = std::chrono::seconds(4);

// Runs until the launcher closes the link. Returns the exit code of the process.
int run_agent(const AgentOptions& options, rank_link::Link link);

}  // namespace weft::launch::internal
