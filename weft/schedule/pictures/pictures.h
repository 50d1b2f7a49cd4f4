// Draws schedules: as a table for the terminal, and as a space-time diagram.
//
// Both come from a symbolic run of all ranks (proof.h), so they show exactly what moves. Labels are
// the numbers of the parts into which the algorithm cuts the array, or the ranks whose blocks move.
// request.rank is ignored. A count of 0 stands for a length that shows the algorithm well. Both
// throw what make() throws, and Error(kInvalidArgument) for a world above kMaxProvedWorld.
#pragma once

#include <string>

#include "weft/schedule/gossip.h"
#include "weft/schedule/schedule.h"

namespace weft::schedule {

// Table in UTF-8, with one row per round and one column per rank. Columns that do not fit in 120
// characters go into another table below.
std::string render_text(const Request& request);

// Self-contained SVG, for light and dark backgrounds. Ranks are rows, and time goes to the right.
// An arrow is a message (dashed: a read from the peer's memory), with its label at its beginning.
// It ends in a plus if the data is added, and in a head if the data replaces what is there.
std::string render_svg(const Request& request);

// Name of the links of a topology's level, for a sentence: "between hosts", "inside a host".
std::string link_name(const Topology& topology, int level);

// Gossip graph as text: its mixing rate, and which ranks each rank hears with which weight. Lists
// only the first 8 ranks of a world above 64. Shows distinct_rounds() rounds.
std::string render_text(const Gossip& gossip);

// Gossip graph as SVG. An arrow points to the rank that hears; a line without heads goes both ways.
// Throws Error(kInvalidArgument) for more than 64 ranks.
std::string render_svg(const Gossip& gossip);

}  // namespace weft::schedule
