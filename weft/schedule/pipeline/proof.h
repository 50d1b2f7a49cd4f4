// The proof that a pipeline schedule is right: all ranks are run at once, with messages that wait
// for their receiver.
//
// What is checked:
//   - each stage does each of its actions for each micro-batch exactly once, on its rank: a
//   forward, and but for kForwardOnly a backward or
//     both parts of one;
//   - on its rank a forward comes before its backward, a backward-input before its backward-weight,
//   and the backwards of a stage come by
//     rising micro-batch, of each kind;
//   - with everything done strictly in the order of steps() and no buffers, no rank waits for ever,
//   the two ends of each message agree, and
//     nothing is computed before its content has come;
//   - no rank holds more than most_held(), nor, at the end, anything.
#pragma once

#include <vector>

#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

// Throws Error(kInternal) that names the first violation with its rank.
void prove(const Schedule& schedule, const std::vector<std::vector<Step>>& steps);
// The same for what make() and steps() give.
void prove(const Request& request);

// The most micro-batches, counted once for each stage, that these actions hold at once
// (pipeline.h); forwards alone hold nothing.
int count_held(const Schedule& schedule, int rank);

}  // namespace weft::schedule::pipeline
