// Proves that a pipeline schedule is correct: runs all ranks at once, with messages that wait for
// their receiver. The proof checks that:
//   - each stage does each of its actions for each micro-batch exactly once, on its rank: a forward
//     and, except for kForwardOnly, a backward or both parts of one;
//   - on its rank, a forward comes before its backward and a backward-input before its
//     backward-weight; the backwards of a stage, of each kind, come by rising micro-batch;
//   - if all ranks work strictly in the order of steps() without buffers, no rank waits forever,
//     the two ends of each message agree, and nothing is computed before its input has arrived;
//   - no rank holds more than most_held(), and none holds anything at the end.
#pragma once

#include <vector>

#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

// Throws Error(kInternal) for the first violation, naming its rank.
void prove(const Schedule& schedule, const std::vector<std::vector<Step>>& steps);
// Checks what make() and steps() return for the request.
void prove(const Request& request);

// Most micro-batches, counted once for each stage, that a rank's actions hold at once (pipeline.h).
// 0 for kForwardOnly. Throws Error(kInternal) if the rank holds any at the end.
int count_held(const Schedule& schedule, int rank);

}  // namespace weft::schedule::pipeline
