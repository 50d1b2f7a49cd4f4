// How long a pipeline schedule takes, and how long its ranks wait in it.
//
// Each rank does its actions in order, each as soon as what it needs is there: the stage before's
// forward or the stage after's backward, later by Costs::message where that is another rank's.
// Messages take no time of the ranks that compute.
#pragma once

#include <vector>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

struct Span {
  double begin = 0;
  double end = 0;
};

struct Timing {
  std::vector<std::vector<Span>> spans;  // of Schedule::actions
  std::vector<double> idle;              // by rank: the share of makespan in which it does nothing
  double makespan = 0;                   // from the first action of all to the last
  double idle_share = 0;                 // of all ranks together
  // The longest that any rank takes from its first action to its last: what an iteration costs
  // where ranks go on to the next one without waiting for all others. The bubble is the part of it
  // in which that rank does nothing (Qi and others, 2023).
  double iteration = 0;
  double bubble = 0;
};

// Throws Error(kInternal) where ranks would wait for each other for ever, naming one of them;
// Error(kInvalidArgument) for costs as make().
Timing play(const Schedule& schedule, const Costs& costs);

}  // namespace weft::schedule::pipeline
