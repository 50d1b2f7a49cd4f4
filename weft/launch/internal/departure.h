// A request that the job goes: a signal, weft stop, or a notice that the machine will be taken
// away. The ranks then save a checkpoint and end, within a grace period.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

constexpr auto kMembershipDelay = std::chrono::seconds(2);

struct Departure {
  std::string why;  // "SIGTERM", "weft stop"
  Time since{};
  std::chrono::milliseconds grace{};
  bool requeues = false;       // with --requeue, the batch system shall start the job again
  bool by_membership = false;  // of the membership: `since` is up to kMembershipDelay late
  // A rank stops by its own should_stop: nobody waits for the end of the job.
  bool by_program = false;
};

// What became of it.
struct Leave {
  Departure asked;
  bool trained = false;  // the program has a run folder, and saves checkpoints
  bool killed = false;   // the grace period was over
  std::string newest;    // folder of the newest checkpoint; empty: none
  Time saved{};          // when it was complete
  Time ended{};          // when the last rank ended
  // A rank has said that it stops. If none has, checkpoints are those that are written anyway.
  bool heeded = false;
};

// When the ranks are killed: a little before the end of the grace period, so that the launcher can
// still say so before it is killed itself.
Time end_of_grace(const Departure& departure);
// One line about the checkpoint. Empty: nothing is known of the program's checkpoints, and it ended
// in time.
std::string line_of(const Leave& leave);

}  // namespace weft::launch::internal
