// What both renderings show: a schedule, its timing and the micro-batches held.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "weft/schedule/pipeline/play.h"

namespace weft::schedule::pipeline::internal {

struct Picture {
  Schedule schedule;
  Timing timing;
  double unit = 1;        // Time of the shortest action.
  std::vector<int> held;  // Most micro-batches held, by rank.
};

// Throws Error(kInvalidArgument) for what is too large to draw.
Picture picture_of(const Request& request);

// "3", or "3.1" with the stage if a rank has several.
std::string label_of(const Request& request, const Action& action);
char letter_of(Work work);
// "4.0 %", "27.3 %".
std::string percent(double share);
std::string decimal(double value);

}  // namespace weft::schedule::pipeline::internal
