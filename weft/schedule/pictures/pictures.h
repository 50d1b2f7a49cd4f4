// Schedules made visible: a table for the terminal, and a space-time picture.
//
// Both come from a symbolic run of all ranks (proof.h), so that what they name is what moves: parts
// of the array, numbered where the algorithm cuts it, or the ranks whose blocks they are.
// request.rank is not looked at. A count of 0 stands for a length that shows the algorithm well.
// Both throw what make() throws, and Error(kInvalidArgument) for a world above kMaxProvedWorld.
#pragma once

#include <string>

#include "weft/schedule/gossip.h"
#include "weft/schedule/schedule.h"

namespace weft::schedule {

// UTF-8, a line a round and a column a rank; columns that do not fit 120 characters go into a
// further table below.
std::string render_text(const Request& request);

// A self-contained SVG, for light and dark backgrounds: ranks are rows, time goes to the right, an
// arrow is a message (dashed: read from the peer's memory) that carries its label at its beginning;
// it ends in a plus where it is added, in a head where it replaces.
std::string render_svg(const Request& request);

// "between hosts", "inside a host": the links of a topology's level, for a sentence.
std::string link_name(const Topology& topology, int level);

// Gossip: its mixing rate, and who hears whom with which weight. Of large worlds the first ranks
// only; of graphs that change, the rounds until they come again, or three.
std::string render_text(const Gossip& gossip);

// The graph, as SVG: an arrow leads to the rank that hears, a line without heads is heard both
// ways. Throws Error(kInvalidArgument) for more than 64 ranks.
std::string render_svg(const Gossip& gossip);

}  // namespace weft::schedule
