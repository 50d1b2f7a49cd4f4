// The hierarchical algorithms with one block per rank: reduce_scatter, and all_gather, which is its
// reverse (see hierarchical.cc).
#pragma once

#include "weft/schedule/schedule.h"

namespace weft::schedule::internal {

Schedule make_by_blocks(const Request& request, const Topology& topology);

}  // namespace weft::schedule::internal
