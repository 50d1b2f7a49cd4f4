// Draws maps of the fastest algorithms: one column for each size, one row for each topology, one
// color for each algorithm.
#pragma once

#include <string>
#include <vector>

#include "tools/docs/internal/race.h"

namespace weft::docs::internal {

// One map, with a row for each topology.
struct Panel {
  struct Row {
    std::string name;  // "16 ranks"
    SharedTopology topology;
  };
  std::string title;
  std::vector<Row> rows;
};

// Draws the panels of one collective below each other, with one legend. The result is a
// self-contained SVG, for light and dark backgrounds.
std::string winners_svg(schedule::Collective collective, const std::vector<Panel>& panels);

}  // namespace weft::docs::internal
