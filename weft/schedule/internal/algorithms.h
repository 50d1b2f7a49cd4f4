// The algorithms, one file each. schedule.cc calls them only for worlds of two or more ranks, for
// requests that move elements (or a barrier), and for the collectives in its table. It handles all
// other requests itself.
#pragma once

#include "weft/schedule/schedule.h"

namespace weft::schedule::internal {

Schedule make_direct(const Request& request);
Cost cost_of_direct(const Request& request);

Schedule make_ring(const Request& request);
Cost cost_of_ring(const Request& request);

Schedule make_recursive_doubling(const Request& request);
Cost cost_of_recursive_doubling(const Request& request);

Schedule make_halving_doubling(const Request& request);
Cost cost_of_halving_doubling(const Request& request);

Schedule make_double_binary_tree(const Request& request);
Cost cost_of_double_binary_tree(const Request& request);

Schedule make_sharded(const Request& request);
Cost cost_of_sharded(const Request& request);

Schedule make_binomial(const Request& request);
Cost cost_of_binomial(const Request& request);

Schedule make_knomial(const Request& request);
Cost cost_of_knomial(const Request& request);

Schedule make_chain(const Request& request);
Cost cost_of_chain(const Request& request);

Schedule make_torus(const Request& request);
Schedule make_hierarchical(const Request& request);

// cost() of the algorithms without a short formula. Makes the schedules of all ranks and counts.
Cost counted_cost(const Request& request);

}  // namespace weft::schedule::internal
