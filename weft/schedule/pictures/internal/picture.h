// What both renderings show: every transfer of a schedule, named.
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
  int level = 0;  // of the topology, whose link it crosses
  // Where it stands within the round, after the order of the steps; no two messages leave or reach
  // a rank at the same place.
  int slot = 0;
  std::string label;  // "3", "0–3", "all"; empty where nothing moves
  int part = 0;       // the first part that moves, of Picture::parts
};

struct Picture {
  Request request;  // with the count that is shown
  Cost cost;
  std::vector<Arrow> arrows;  // by round, then by slot
  std::vector<int> meetings;  // rounds that begin with one
  int parts = 1;
  std::vector<Traffic> traffic;  // by level; empty where there is one level only
  // Of what the labels are the numbers: "part", "block of rank"; "" where there are none.
  std::string what;
};

Picture picture_of(const Request& request);

// "Ring all-reduce", and the sentence below it.
std::string heading(const Picture& picture);
std::string summary(const Picture& picture);
// What crosses each level, "" where there is one level only: "between hosts 160 elements, 80 out of
// the busiest; inside …".
std::string levels_line(const Picture& picture);

}  // namespace weft::schedule::internal
