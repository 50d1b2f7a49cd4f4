// Computes how long a pipeline schedule takes, and how long its ranks are idle.
//
// Each rank runs its actions in order, each as soon as its input is available: the forward of the
// previous stage or the backward of the next one. If that stage is on another rank, the input
// arrives Costs::message later. Messages take no computing time of their ranks.
#pragma once

#include <span>
#include <vector>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

struct Span {
  double begin = 0;
  double end = 0;
};

struct Timing {
  std::vector<std::vector<Span>> spans;  // By rank and action, as in Schedule::actions.
  std::vector<double> idle;              // Idle share of the makespan, by rank.
  double makespan = 0;                   // Time from the first action to the end of the last.
  double idle_share = 0;                 // Idle share of all ranks together.
  // Longest time of any rank from its first action to the end of its last. It is the time of an
  // iteration if ranks begin the next one without waiting for all others. The bubble is the part of
  // it in which that rank is idle (Qi and others, 2023).
  double iteration = 0;
  double bubble = 0;
};

// The costs of every stage, or one for all of them. The message of a stage goes to the next stage,
// or comes back from it.
// Throws Error(kInternal) if ranks would wait for each other forever, naming one of them;
// Error(kInvalidArgument) for costs that are not positive, a negative cost of messages, or another
// number of costs than stages.
Timing play_stages(const Schedule& schedule, std::span<const Costs> by_stage);
inline Timing play(const Schedule& schedule, const Costs& costs) {
  return play_stages(schedule, std::span(&costs, 1));
}

}  // namespace weft::schedule::pipeline
