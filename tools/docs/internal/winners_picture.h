// A map of winners: sizes to the right, worlds downwards, a color for each algorithm.
#pragma once

#include <string>
#include <vector>

#include "tools/docs/internal/race.h"

namespace weft::docs::internal {

// One map: a row for each world.
struct Panel {
  struct Row {
    std::string name;  // "16 ranks"
    SharedTopology topology;
  };
  std::string title;
  std::vector<Row> rows;
};

// Panels of one collective below each other, with one legend. A self-contained SVG, for light and
// dark backgrounds.
std::string winners_svg(schedule::Collective collective, const std::vector<Panel>& panels);

}  // namespace weft::docs::internal
