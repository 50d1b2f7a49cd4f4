// Which faults happen when, as pure functions of a seed: the same seed gives the same faults.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/chaos/fault.h"

namespace weft::chaos {

struct ScheduleOptions {
  std::vector<FaultKind> kinds{FaultKind::kKill};
  std::uint64_t seed = 1;
  int ranks = 2;
  int hosts = 1;
  // Every second fault happens while the job recovers from the one before it.
  bool overlap = false;
};

struct StepsOptions {
  int count = 1;
  // The faults happen after these steps and those between them.
  std::int64_t first = 1, last = 1;
  std::int64_t end = 1;  // Steps of the job. A fault with a duration ends before its last step.
  double step_s = 0;     // Time of a step. A fault happens at a random instant within about one.
};

// Faults at random steps, in order, and at random instants in these steps. Ranks and kinds are
// random. Throws Error(kInvalidArgument) if there are fewer steps than faults. Each kind happens
// once at least, if there are enough faults. A failpoint fails a rank that was not replaced before,
// since failpoints are for the first process of a rank; if there is none, the rank is killed.
std::vector<Fault> faults_at_steps(const ScheduleOptions& options, const StepsOptions& steps);

// Faults whose distance in time is exponentially distributed with this mean (a Poisson process),
// until `total_s` have passed. No failpoints.
std::vector<Fault> faults_at_times(const ScheduleOptions& options, double mean_s, double total_s);

// Divides `count` faults over jobs, as evenly as possible.
std::vector<int> divide(int count, int jobs);

}  // namespace weft::chaos
