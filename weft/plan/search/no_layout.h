// What to say if a search has found no layout that fits.
#pragma once

#include <string>

#include "weft/plan/search/search.h"

namespace weft::plan {

// One line: what the nearest layout lacks, that no layout uses all devices, or that the time ran
// out. `headroom`: that of the search. Without advice, which the caller adds.
std::string why_no_layout(const Found& found, const Job& job, double headroom);

// "on 4 nodes, pp 4 x tp 8, zb_h1, micro-batch 1 fits": 2, 4, … or 64 times as many nodes, the
// first number on which the search finds a layout. Empty: it finds none, or the nodes differ. Each
// of the searches may take options.seconds.
std::string nodes_that_fit(const Job& job, SearchOptions options);

}  // namespace weft::plan
