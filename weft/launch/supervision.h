// What a launcher has to do next, and who failed first: pure functions of what has been seen so
// far. The launcher carries it out.
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

// One attempt, as seen now.
struct Situation {
  std::vector<std::optional<RankEnd>> ranks;  // by local rank; nullopt: runs
  int restarts = 0;                           // of the job, so far
  int stop_signals = 0;                       // that the launcher itself was sent
  bool store_lost = false;                    // the process that holds the store has ended
  std::optional<Time> stop_sent;              // when the ranks were first told to stop
  bool kill_sent = false;
};

struct Policy {
  int max_restarts = 0;
  // From a rank's failure to SIGTERM for the others, in which they notice it and say so themselves
  // (2 s at most).
  std::chrono::milliseconds survivor_grace = std::chrono::seconds(5);
  // From SIGTERM, or the signal passed on, to SIGKILL.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
};

enum class Act { kWait, kTerminate, kKill, kRestart, kFinish };

struct Decision {
  Act act = Act::kWait;
  std::optional<Time> until = {};  // kWait: ask again then at the latest
  std::string reason = {};
};

Decision decide(const Situation& situation, const Policy& policy, Time now);

// A rank that ended by weft's own PeerLost or Aborted, or after it was told to stop: another one is
// to blame.
bool is_consequence(const RankEnd& end, const Situation& situation);

// The local rank to blame: the earliest failure that is no consequence, else the earliest; of
// several seen at once a killed one. nullopt: none failed.
std::optional<int> first_failure(const Situation& situation);

}  // namespace weft::launch
