// How the step of one layout changes with the cluster and the batch.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/step/step.h"

namespace weft::plan {

struct Change {
  std::string what;       // "links between nodes twice as fast".
  double throughput = 0;  // Relative to the layout as it is: 1.1 is 10 % more samples a second.
};

// Changes of devices, memory bandwidth, links inside and between nodes, and the batch, each doubled
// and halved. Those that do not apply (links between nodes on one node) are left out.
std::vector<Change> sensitivity(const Job& job);

}  // namespace weft::plan
