// The ranks of a job: which there are, on which node, and how their number changes. Pure functions
// of what the nodes report. On several nodes the agents (internal/agent.h) execute them; a job of
// one node is a membership with one node (internal/one_node.h).
//
//   reports (kept while the node's agent lives) ──┐
//   the membership so far ────────────────────────┴─ next_membership() ─► compare and set ─► agents
//
// Every agent computes the next membership. The store accepts one of them, so all agents follow
// the same one. A part of the nodes without a majority cannot change the store, and so cannot go
// on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/launch/limits.h"
#include "weft/rank_link/usable_ranks.h"

namespace weft::launch {

// A rank as its node sees it.
enum class RankPhase {
  kStarting,  // It was started and is not part of the group yet.
  kWaiting,   // It waits to be added to the group.
  kMember,    // It is part of the group.
  kLost,      // It ended by a fault of its own: another process can take its place.
  kRefused,   // It was to be added and does not fit the running job.
  kFailed,    // It ended in a way that ends the job.
  kLeft,      // It ended because the job shrinks.
  kDone,      // It ended with success.
};

struct RankReport {
  int incarnation = 0;  // of the membership's placement that the node has started
  RankPhase phase = RankPhase::kStarting;
  std::string why = {};  // how it ended
  int code = 0;          // its exit code, 128 + n for signal n
  bool operator==(const RankReport&) const = default;
};

// A number of ranks that somebody asked for. The one with the highest serial counts.
struct SizeRequest {
  std::int64_t serial = 0;  // 0: none
  int ranks = 0;
  bool operator==(const SizeRequest&) const = default;
};

// A node's request that the job ends, or goes on without it.
struct StopRequest {
  std::string why = {};       // "SIGTERM to the launcher of node 1"; empty: no request
  int code = 0;               // exit code of the job
  std::int64_t grace_ms = 0;  // time from the request until ranks are killed
  bool operator==(const StopRequest&) const = default;
};

// A complete checkpoint. The one with the highest serial is the newest.
struct SavedCheckpoint {
  std::int64_t serial = 0;  // 0: none
  std::string folder = {};
  bool operator==(const SavedCheckpoint&) const = default;
};

// Facts of a launcher that decides by itself: of a job of one node, or with --master-addr. It keeps
// the membership in memory (internal/one_node.h), so they have no text.
struct OneNode {
  bool has_trained = false;     // there may be a checkpoint
  bool has_progressed = false;  // the ranks have trained a step beyond those of earlier attempts
  bool store_lost = false;      // the process that holds the store has ended
  int failed_first = -1;        // rank that failed first; -1: none, or the store had ended before
  int failed_starts = 0;  // starts in a row that failed, since the machine has run out of something
  bool pauses = false;    // the next start has to wait, after failed ones or a crash loop
  bool operator==(const OneNode&) const = default;
};

struct NodeReport {
  int node = 0;  // number of the node, in the order of joining
  std::string host;
  int slots = 1;     // ranks that it can run
  int failures = 0;  // ranks that failed on it in the last ten minutes
  std::map<int, RankReport> ranks;
  SizeRequest wanted = {};
  std::string run = {};                               // run folder that a rank of it has named
  std::optional<rank_link::UsableRanks> usable = {};  // that a rank of it has named
  SavedCheckpoint saved = {};                         // that a rank of it has named
  StopRequest stop = {};                              // the job shall end
  StopRequest leave = {};         // the job shall go on without this node, or end if it cannot
  std::set<int> replicated = {};  // its parameter servers whose shards all have two copies
  std::string servers_lost = {};  // why its parameter servers cannot go on
  bool starts_fail = false;       // a start has failed lately: the machine has run out of something
  bool holds_store = false;       // without it, the other nodes cannot change the membership
  bool left = false;              // it has seen the end of the job, and its ranks have ended
  bool knows_all_left = false;    // it has seen that all nodes have left
  std::optional<OneNode> one_node = {};  // nullopt: agents decide
  bool operator==(const NodeReport&) const = default;
};

struct Placement {
  int node = 0;
  int incarnation = 0;    // counts all placements of the job, from 1
  bool first = false;     // one of the ranks that the attempt begins with
  bool member = false;    // it was part of the group
  bool replaces = false;  // the others wait for it, since it replaces a lost rank
  int tries = 0;          // newcomers in a row, before it, that ended before they had joined
  bool operator==(const Placement&) const = default;
};

// What the ranks are told: their number, and which ranks wait to be added.
struct Announcement {
  int number = 0;  // counts announcements; 0: none
  int ranks = 0;
  std::set<int> newcomers;
  bool operator==(const Announcement&) const = default;
};

struct Membership {
  std::string policy;    // of the node that made the first membership; see to_text()
  bool formed = false;   // the first ranks have their places
  int attempt = 0;       // times that all ranks were started again
  int restores = 0;      // the same in a row without progress; see kMaxRestores
  SizeRequest wanted;    // serial 0: as many ranks as policy.max_ranks
  int replacements = 0;  // lost ranks that were replaced, and attempts
  int never_joined = 0;  // newcomers in a row that ended before they had joined
  int incarnations = 0;  // placements so far
  std::map<int, Placement> ranks;
  std::set<int> gone;     // ranks that were lost and have no place
  std::set<int> aside;    // nodes that get no ranks, since they failed too often
  std::set<int> leaving;  // nodes that asked to leave: the job goes on without them
  // Processes that load, and take the places of ranks of nodes that leave. By rank.
  std::map<int, Placement> successors;
  std::map<int, int> servers;  // node of each parameter server
  Announcement announcement;
  rank_link::UsableRanks usable;     // numbers of ranks that the program can use
  std::string run;                   // run folder, from which all ranks can start again
  SavedCheckpoint saved;             // the newest checkpoint
  std::int64_t saved_before = 0;     // serial of the one from which all ranks started again last
  std::map<int, std::string> notes;  // the latest changes, for people, by number
  bool done = false;                 // a rank has ended its program with success
  std::string end;                   // why the job ends; empty: it goes on
  int end_code = 0;                  // exit code of the job then
  StopRequest stop;                  // the request because of which it ends, if any
  int stop_node = -1;                // node that made it
  bool is_stopped() const { return !stop.why.empty(); }
  bool operator==(const Membership&) const = default;
};

struct MembershipPolicy {
  int min_nodes = 1, max_nodes = 1;
  int min_ranks = 0;  // go on with so many; 0: every lost rank must be replaced
  int max_ranks = 1;  // ranks that the job shall have, if nobody asks for another number
  int max_replacements = 0;
  int servers = 0;             // parameter servers
  bool server_backup = false;  // server i + 1 has a copy of the shard of server i
};

// Most bytes of RankReport::why on a node with so many ranks: their report must fit into one
// message (rank_link/link.h).
std::size_t longest_reason(std::size_t ranks);

// A node with so many failures in ten minutes is set aside, if the others can take its ranks.
constexpr int kMaxFailures = 3;

// The next membership; the same one if nothing changes. `nodes`: the reports of the nodes that
// live. `last_call`: the time to wait for more than min_nodes nodes is over.
Membership next_membership(const Membership& membership, const std::vector<NodeReport>& nodes,
                           const MembershipPolicy& policy, bool last_call);

// As text, for the store. The inverse functions throw Error(kCorrupt).
std::string to_text(const NodeReport& report);
std::string to_text(const Membership& membership);
NodeReport node_report_of(const std::string& text);
Membership membership_of(const std::string& text);
// The flags that must be equal on all nodes, for people: "--nnodes 2:3, …".
std::string to_text(const MembershipPolicy& policy);

}  // namespace weft::launch
