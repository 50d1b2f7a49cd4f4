// What both renderings show: every transfer of a schedule, with its label.
#pragma once

#include <string>
#include <vector>

#include "weft/schedule/schedule.h"

namespace weft::schedule::internal {

struct Arrow {
  int round = 0;
  int source = 0;
  int target = 0;
  bool reduces = false;
  bool reads = false;
  int level = 0;  // Level of the topology whose link it crosses.
  // Position within the round, following the order of the steps. No two messages leave or reach a
  // rank at the same position.
  int slot = 0;
  std::string label;  // "3", "0–3", "all"; empty if no elements move.
  int part = 0;       // First of the parts that move, below Picture::parts.
};

struct Picture {
  Request request;  // Request with the count that is shown.
  Cost cost;
  std::vector<Arrow> arrows;  // Sorted by round, then by slot.
  std::vector<int> meetings;  // Rounds that begin with a meeting.
  int parts = 1;
  std::vector<Traffic> traffic;  // By level; empty if there is only one level.
  // What the labels number: "part", "the block of rank", "the block for rank"; "" for a barrier.
  std::string what;
};

Picture picture_of(const Request& request);

// Heading ("Ring all-reduce"), and the sentence below it.
std::string heading(const Picture& picture);
std::string summary(const Picture& picture);
// Elements that cross each level: "between hosts 160 elements, 80 out of the busiest; inside …".
// Empty if there is only one level.
std::string levels_line(const Picture& picture);

}  // namespace weft::schedule::internal
