// What no program can say of an algorithm: what it is, where it comes from, and the formulas of its
// cost.
#pragma once

#include <span>

#include "weft/schedule/gossip.h"
#include "weft/schedule/schedule.h"

namespace weft::docs::internal {

extern const char* const kIntroduction;  // of the page, up to the maps
extern const char* const kTable;         // before the table of winners
extern const char* const kGossip;        // before the table of graphs

struct Formula {
  schedule::Collective collective;
  const char* rounds;
  const char* sent;  // elements, by the busiest rank
};

struct Words {
  schedule::Algorithm algorithm;
  const char* what;
  const char* source;
  const char* otherwise;  // what it is for where it wins nowhere in the table
  std::span<const Formula> formulas;
};

// Throws Error(kInternal) for an algorithm without words.
const Words& words_of(schedule::Algorithm algorithm);

struct GossipWords {
  schedule::Graph graph;
  const char* what;
  const char* messages;
  const char* rate;  // the formula
};

std::span<const GossipWords> gossip_words();

}  // namespace weft::docs::internal
