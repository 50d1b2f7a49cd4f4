// Memory of the ranks of one replica over the actions of its schedule.
#pragma once

#include <vector>

#include "weft/plan/step/internal/replica.h"
#include "weft/plan/step/step.h"

namespace weft::plan::internal {

// Bytes of weights, gradients and optimizer state for `parameters` of one rank (before ZeRO).
Memory states_of(const Job& job, double parameters);

// Memory at the peak of each rank along pp.
std::vector<Memory> memory_of(const Job& job, const Replica& replica,
                              const schedule::pipeline::Schedule& schedule,
                              const schedule::pipeline::Timing& timing);

// Least bytes that the fullest rank needs under any schedule: one micro-batch in flight on each of
// its stages.
double least_memory(const Job& job, const Replica& replica);

}  // namespace weft::plan::internal
