// One HTML page of a plan: the chosen layout and the next best, a timeline of the step, memory by
// rank, the mesh on the nodes, the knee and the sensitivity. It needs no network, and follows the
// reader's light or dark theme.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/search/knee.h"
#include "weft/plan/search/search.h"
#include "weft/plan/search/sensitivity.h"

namespace weft::plan {

struct PlanPage {
  std::string title;   // "plan for recipes/bible on 8 nodes of 8 A100 SXM 80GB".
  std::string recipe;  // The fragment of the recipe.
  Job job;             // With the best layout.
  Found found;
  Knee knee;
  std::vector<Change> changes;
};

std::string plan_page(const PlanPage& page);

// Timeline of a step: one row for each rank along pp; forwards, backwards and their parts, and the
// phase after the last backward.
std::string timeline_svg(const Step& step);
// Stacked bars of each rank's memory at its peak, with the capacity.
std::string memory_svg(const Step& step);
// Bars around 1: how throughput changes.
std::string sensitivity_svg(const std::vector<Change>& changes);
// Throughput over the number of devices, with the ideal line.
std::string knee_svg(const Knee& knee);

}  // namespace weft::plan
