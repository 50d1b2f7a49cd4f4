// The algorithms, one file each. pipeline.cc checks the request first. If an algorithm fixes
// virtual_stages, its value is 1 or 2 as required.
#pragma once

#include <vector>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline::internal {

using Actions = std::vector<Action>;

Actions gpipe(const Request& request, int rank);
Actions forward_only(const Request& request, int rank);
Actions one_forward_one_backward(const Request& request, int rank);
Actions interleaved(const Request& request, int rank);
Actions zero_bubble_h1(const Request& request, int rank);
Actions zero_bubble_h2(const Request& request, int rank);
Actions zero_bubble_v(const Request& request, int rank);
// Returns the actions of all ranks, since the greedy scheduler decides for all ranks at once.
std::vector<Actions> automatic(const Request& request);

// Number of micro-batches in the largest group of the interleaved schedule.
int largest_group(const Request& request);
// Number of micro-batches that a rank of the automatic schedule may hold.
int memory_of(const Request& request);

}  // namespace weft::schedule::pipeline::internal
