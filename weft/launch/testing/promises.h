// What membership_simulation_test.cc checks of a job, and the rules that it breaks on purpose.
#pragma once

#include <string>

namespace weft::launch::membership_simulation {

// Promises of a job.
enum class Promise {
  kOneGroup,  // At most one group trains, and none after a later one has trained.
  kOnce,      // No step is done twice.
  kNoLoss,    // No step, and so no sample, is left out.
  kEnd,       // All launchers end.
};
struct Breach {
  Promise promise;
  std::string what;
};

// Rules that the tests break on purpose.
enum class Flaw {
  kNone,
  kSilentNodesAreDead,  // Agents take a node without a report for one whose ranks have ended.
  kIgnoresFence,        // Launchers do not end ranks that were replaced.
  kKeepsHalfSteps,      // Weights are not set back to the copy after a loss.
  kTakesEmptyState,     // The state of a new rank counts as a copy.
  kHidesLostRanks,      // Agents do not report ranks that have ended.
};

}  // namespace weft::launch::membership_simulation
