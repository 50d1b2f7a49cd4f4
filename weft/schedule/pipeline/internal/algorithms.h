// The algorithms, one file each. They are asked only for what pipeline.cc lets through: v is 1 or 2
// where an algorithm has no choice.
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
// The greedy scheduler decides for all ranks at once.
std::vector<Actions> automatic(const Request& request);

// Micro-batches of the largest group of the interleaved schedule.
int largest_group(const Request& request);
// Micro-batches that a rank of the automatic schedule may hold.
int memory_of(const Request& request);

}  // namespace weft::schedule::pipeline::internal
