// Descriptions of the collective algorithms: the idea, the source, and the formulas of the cost.
#pragma once

#include <span>

#include "weft/schedule/gossip.h"
#include "weft/schedule/schedule.h"

namespace weft::docs::internal {

extern const char* const kIntroduction;  // beginning of the page, up to the maps
extern const char* const kTable;         // text before the table of the fastest algorithms
extern const char* const kGossip;        // text before the table of graphs

struct Formula {
  schedule::Collective collective;
  const char* rounds;
  const char* sent;  // elements that the busiest rank sends
};

struct Words {
  schedule::Algorithm algorithm;
  const char* what;
  const char* source;
  const char* otherwise;  // when to use it, if it is nowhere the fastest in the table
  std::span<const Formula> formulas;
};

// Throws Error(kInternal) for an algorithm without a description.
const Words& words_of(schedule::Algorithm algorithm);

struct GossipWords {
  schedule::Graph graph;
  const char* what;
  const char* messages;
  const char* rate;  // formula of the mixing rate
};

std::span<const GossipWords> gossip_words();

}  // namespace weft::docs::internal
