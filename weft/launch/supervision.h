// Decides the next action of the launcher, and which rank failed first: pure functions of the
// events so far. The launcher executes the decisions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/process.h"

namespace weft::launch {

using Time = std::chrono::steady_clock::time_point;

struct RankEnd {
  ExitStatus status;
  Time when;
};

// State of one attempt.
struct Situation {
  std::vector<std::optional<RankEnd>> ranks;  // by local rank; nullopt: running
  int restarts = 0;                           // restarts of the job so far
  int stop_signals = 0;                       // stop signals that the launcher received
  bool store_lost = false;                    // the process that hosts the store has ended
  std::optional<Time> stop_sent;              // time at which the ranks were first told to stop
  bool kill_sent = false;
};

struct Policy {
  int max_restarts = 0;
  // Time from a rank's failure to SIGTERM for the others, in which they can notice and report it
  // themselves (they need at most 2 s).
  std::chrono::milliseconds survivor_grace = std::chrono::seconds(5);
  // Time from SIGTERM, or the forwarded signal, to SIGKILL.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
};

enum class Act { kWait, kTerminate, kKill, kRestart, kFinish };

struct Decision {
  Act act = Act::kWait;
  std::optional<Time> until = {};  // kWait: latest time of the next decision
  std::string reason = {};
};

Decision decide(const Situation& situation, const Policy& policy, Time now);

// True for a rank that ended with weft's PeerLost or Aborted, or after it was told to stop: another
// rank is the cause.
bool is_consequence(const RankEnd& end, const Situation& situation);

// Returns the local rank that failed first: the earliest failure that is not a consequence, else
// the earliest failure; among simultaneous ones, a killed rank. nullopt: none failed.
std::optional<int> first_failure(const Situation& situation);

}  // namespace weft::launch
