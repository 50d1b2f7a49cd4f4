// Decides the next action of the launcher, and which rank failed first: pure functions of the
// events so far. The launcher executes the decisions. decide() itself decides how processes end;
// next_membership() (membership.h) decides which ranks there are.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/base/json/error_file.h"
#include "weft/launch/hang_watch.h"
#include "weft/launch/limits.h"
#include "weft/launch/membership.h"
#include "weft/launch/process.h"

namespace weft::launch {

using Time = std::chrono::steady_clock::time_point;

struct RankEnd {
  ExitStatus status;
  Time when;
  std::optional<Cause> cause = {};  // from its error file
  bool told = false;                // it ended after the launcher told it to stop
  bool done_without = false;        // the others went on without it
  bool left = false;                // it left, since the job shrinks
  bool joining = false;             // it was a newcomer, and did not become one of the others
  // It waited for the first group of a job of several launchers, which can never form now. So it is
  // replaced whatever its error.
  bool unmet = false;
};

// State of one attempt.
struct Situation {
  std::vector<std::optional<RankEnd>> ranks;  // by local rank; nullopt: running
  int first_rank = 0;                         // rank in the job of ranks[0]
  std::set<int> stopped;    // local ranks whose process a signal (SIGSTOP) had stopped
  int restarts = 0;         // restarts of the job so far
  int stop_signals = 0;     // stop signals that the launcher received
  bool store_lost = false;  // the process that hosts the store has ended
  std::optional<std::string> servers_lost = {};  // why the parameter servers cannot go on
  std::optional<Time> stop_sent = {};            // time at which the ranks were first told to stop
  std::optional<Time> kill_sent = {};            // time at which the ranks were killed
  bool asked = false;                  // somebody asked the job to end, other than by a signal
  std::optional<Time> grace_end = {};  // when ranks that were asked to stop are killed
  std::set<int> meeting;               // local ranks that wait for all ranks of the first group
  // The membership that the launcher keeps itself (internal/one_node.h): the ranks of this node by
  // local number, and the counts of next_membership(). On nodes that meet, it has no ranks.
  Membership job = {.formed = true};
  // Local ranks that were started after the first ones and have not joined the others: kStarting,
  // or kWaiting.
  std::map<int, RankPhase> newcomers;
  std::set<int> dismissed;  // local ranks that were ended, since the others do not need them
  // Replacements in a row that the machine could not start, or that ended since it had run out of
  // processes, memory or descriptors.
  int failed_starts = 0;
  Time last_end{};           // of a replacement that never joined
  bool other_nodes = false;  // ranks of other nodes, in an unknown state, may hold the job's state
  bool trained = false;      // the ranks of this attempt have begun to train
  // The training is done, and its last checkpoint could not be written: all would be done again.
  bool unsaved = false;
  std::int64_t step = 0;       // latest known step of training
  std::int64_t last_step = 0;  // of earlier attempts
  // What this node knows of the job's membership that the agents of several nodes keep. It decides
  // which ranks run.
  struct Followed {
    std::optional<Time> over = {};  // when this node learned that the job is over
    bool done = false;              // with success
    bool stopped = false;           // since a launcher was told to stop
    bool has_members = true;        // a rank of the group runs, on any node
    // When this node learned that the ranks of all nodes have ended; then that all nodes know it.
    std::optional<Time> all_left = {};
    bool all_know = false;
    bool away = false;    // the job goes on without this node
    bool serves = false;  // ranks of other nodes may use parameter servers of this one
  };
  std::optional<Followed> followed = {};  // nullopt: the launcher keeps the membership (job)
  // The rank that was killed because it hung, where a hang ends the job.
  struct Killed {
    int rank;  // local
    std::string why;
  };
  std::optional<Killed> hang = {};
};

// What to do about a rank that hangs. kWarn: say so. kReplace: kill it, so that it is lost.
enum class OnHang { kWarn, kReplace, kEnd };

struct Policy {
  OnHang on_hang = OnHang::kWarn;
  int max_restarts = 0;
  int max_replacements = 0;  // lost ranks to replace, counted over the job
  int min_ranks = 0;         // go on without lost ranks down to this number; 0: never
  int max_ranks = 0;         // most ranks to grow to; 0: the job does not grow
  // Time from a rank's failure to SIGTERM for the others, in which they can notice and report it
  // themselves (they need at most 2 s).
  std::chrono::milliseconds survivor_grace = std::chrono::seconds(5);
  // Time from SIGTERM, or the forwarded signal, to SIGKILL.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
};

// Changes of the ranks, which next_membership() decides (internal/one_node.h):
//   kReplace      start a new process in place of a lost rank, while the others run
//   kGoOnWithout  the others go on without a lost rank
//   kGrow         start an additional rank
//   kAnnounce     tell the ranks how many ranks the job shall have
// Ends of processes, which decide() decides:
//   kDismiss      end a rank that has not joined the others, which have ended
//   kTerminate    ask all ranks to end
//   kKill         kill all ranks
//   kAbandon      take a killed rank for ended: the system does not end its process
// Ends of the attempt:
//   kRestart      start all ranks again (--max-restarts)
//   kRestore      the same, from the newest checkpoint if there is one; end ranks that still run.
//                 next_membership() decides it, too
//   kFinish       the job has ended
enum class Act {
  kWait,
  kReplace,
  kGoOnWithout,
  kGrow,
  kAnnounce,
  kDismiss,
  kTerminate,
  kKill,
  kAbandon,
  kRestart,
  kRestore,
  kFinish
};

struct Decision {
  Act act = Act::kWait;
  std::optional<Time> until = {};  // kWait: latest time of the next decision
  std::string reason = {};
  // kReplace, kGoOnWithout: the lost rank; kWait: a lost rank that is replaced at `until`, or -1;
  // kGrow: the place; kDismiss: the rank to end; kAbandon: the rank. By local number.
  int rank = -1;
  int ranks = 0;                 // kAnnounce: the number to tell
  std::set<int> newcomers = {};  // kAnnounce: ranks that wait to be added
  bool counts = false;           // kGrow: it counts as a replacement
};

// What the launcher does about a hang now. kKill: the rank, which is then lost. kEnd: the job.
enum class HangAct { kWarn, kKill, kEnd };
// A rank that is held counts as lost as soon as that is certain, where lost ranks are replaced.
HangAct act_on(const Hang& hang, const Policy& policy);

// Starts that fail since the machine has run out of something wait as long as those of a crash
// loop, but at most this time.
constexpr auto kMaxStartBackOff = std::chrono::seconds(2);
// The longest time that a launcher stays for other nodes to learn of the end of the job.
constexpr auto kFarewell = std::chrono::seconds(3);

// Killed ranks end within this time, unless the system cannot end them: they wait for a device or a
// file system.
constexpr auto kKillLimit = std::chrono::seconds(10);

Decision decide(const Situation& situation, const Policy& policy, Time now);

// Local ranks that were started in place of lost ones and have not joined the others.
std::set<int> replacements(const Situation& situation);

// Local ranks whose replacements the others do not wait for: those beyond a group of `size` ranks,
// and all of them if the group is whole without them. Call it when the group has just formed.
std::set<int> needless_ranks(const Situation& situation, int size);

// Local ranks to which a request to stop is not passed on: replacements that have not joined the
// others. The signal would kill them, and with them the recovery that the checkpoint needs. Once
// they have joined, they stop with the others.
std::set<int> ranks_that_stop_later(const Situation& situation);

// True if the ranks have trained a step beyond those of earlier attempts.
bool has_progressed(const Situation& situation);

// The situation at the start of the next attempt, after kRestart or kRestore.
Situation next_attempt(const Situation& situation, Act how);

// True if another rank is the cause: the rank failed with weft's PeerLost or Aborted, or with a
// timeout of a wait for a peer, or it was told to stop.
bool is_consequence(const RankEnd& end);

// From RankPhase::kLost on: what the other ranks can do about the end of a rank.
RankPhase phase_of(const RankEnd& end);

// Returns the local rank that failed first: the earliest failure that is not a consequence, else
// the earliest failure; among simultaneous ones, a killed rank. nullopt: none failed, except ranks
// without which the others went on and succeeded.
std::optional<int> first_failure(const Situation& situation);

// The rank at fault.
struct Blame {
  enum class How {
    kFailed,   // It failed by itself.
    kHung,     // It hung, and was killed because of it (Situation::hang).
    kStopped,  // A signal had stopped its process while others waited for it.
    kSilent,   // It did not fail, and did not answer the ranks that waited for it.
    kLeft,     // It ended with exit code 0 while others waited for it.
  };
  How how = How::kFailed;
  int rank = 0;      // as an index of Situation::ranks; beyond them: a rank of an unknown state
  int waiting = -1;  // local rank that failed because it waited for `rank`; -1: none
};

// Returns the rank that failed first if its failure is not a consequence. Otherwise follows, from
// the rank that failed first, who waited for whom. nullopt: no rank failed.
std::optional<Blame> blame(const Situation& situation);

}  // namespace weft::launch
