// Judges a job with faults against an undisturbed one, from what was observed: pure functions.
//
// A job passes if
// - it ends with exit code 0 and within its limit of time;
// - every step was finished once at least, on the same samples as in the undisturbed job;
// - its last checkpoint has the same SHA-256;
// - the launcher named each lost rank, and no rank that was not lost;
// - no group went on after a later one had finished a step;
// - nothing is left behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/record.h"

namespace weft::chaos {

// So long after a recovery, what it has started (such as the next spare) has ended.
constexpr double kCalm_s = 5;

struct FaultResult {
  // Until the job's output named the victim and the fault.
  std::optional<double> named_s;
  // Until all ranks had finished a step again. A fault that loses no rank: the longest time without
  // a finished step while it lasted.
  std::optional<double> next_step_s;
  // Until the newest step from before the fault was passed.
  std::optional<double> caught_up_s;
  std::int64_t redone = 0;  // Steps that were done again.
  std::string problem;      // Empty: it was recovered from.
};

struct Expected {
  bool same_weights = true;  // The digests must be equal.
  // Slow ranks and other pauses may take so long until the next step.
  double slowest_s = 60;
  // Of a step without faults. nullopt: as in the undisturbed job.
  std::optional<double> step_s = {};
};

struct Verdict {
  std::vector<FaultResult> faults;    // In the order of JobRecord::faults.
  std::vector<std::string> problems;  // Of the whole job, and of each fault. Empty: it passes.
  bool faults_happened = true;        // At least one, and each reached its victim.
  bool same_digest = false;
  std::int64_t steps = 0;   // Different steps that were finished.
  std::int64_t redone = 0;  // Steps that were done more than once.
  double wall_s = 0;        // From the first finished step to the last one.
  double useful_s = 0;      // Time that the same steps take without faults.
  double goodput = 0;       // useful_s / wall_s.
  // Mean time of the job's own steps from kCalm_s after a recovery to the next fault.
  std::optional<double> calm_step_s;
  double interrupted = 0;  // Share of wall_s between a fault and the catching up.
};
Verdict judge(const JobRecord& undisturbed, const JobRecord& disturbed, const Expected& expected);

// Mean time of a job's steps, without its start. 0 if there are fewer than two.
double seconds_per_step(const JobRecord& job);

// The value below which a share of the values lies (nearest rank). nullopt without values.
std::optional<double> percentile(std::vector<double> values, double share);

}  // namespace weft::chaos
