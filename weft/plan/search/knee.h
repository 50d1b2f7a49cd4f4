// The knee: from how many nodes on more of them help little, and what would have to change.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/search/search.h"

namespace weft::plan {

struct KneePoint {
  int nodes = 1;
  int devices = 1;
  double seconds = 0;  // Of a step with the best layout; 0: nothing fits.
  double samples_per_s = 0;
  double efficiency = 0;  // Throughput of a device relative to the smallest that fits.
  std::string layout;
  bool complete = true;  // False: the time of its search ran out.
};

struct Knee {
  std::vector<KneePoint> points;  // By rising number of nodes.
  // Most nodes up to which doubling them gives at least 1.5x. 0: nothing fits.
  int nodes = 0;
  std::string text;  // One line: what limits, and what would have to change.
};

// Searches at 1, 2, 4, … times `nodes`, and at half and a quarter of it, up to four times it.
// `seconds`: of the whole.
//
// From one number of nodes to the next, they may also triple (1 and 3). That is 1.6 doublings.
Knee find_knee(const Job& job, const SearchOptions& options, int nodes);

// The knee of these points, with their efficiency, and without a text.
Knee knee_of(std::vector<KneePoint> points);

}  // namespace weft::plan
