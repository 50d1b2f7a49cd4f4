// The proof that a collective's schedules are right: all ranks are run at once, on symbols instead
// of numbers.
//
// Every element carries which ranks have contributed to it, from which place of their input, and in
// which order they were combined. It is kept for whole runs of equal elements, so that long arrays
// cost no more than short ones; 128 ranks take some milliseconds. What is checked:
//   - every message has its receiver in the same round, of the same length (so that no rank waits
//   for ever);
//   - nothing is read that was not written, out of bounds, or written by a peer or a message at the
//   same time; input is never written;
//   - in shared memory only kMeet orders ranks: peers read what was complete at the last meeting,
//   and nobody leaves while others may read;
//   - each rank ends with exactly one contribution of each rank, or exactly the right block (a
//   barrier: having heard of every rank);
//   - the ranks of an all-reduce combined in the same order, and so have the same bits;
//   - rounds and elements are what cost() promises.
#pragma once

#include <span>

#include "weft/schedule/schedule.h"

namespace weft::schedule {

// The largest world that can be proved.
inline constexpr int kMaxProvedWorld = 256;

// Checks the schedules of all ranks (by rank). `same_array`: input and output are one array
// wherever their lengths agree. request.rank is not looked at. Throws Error(kInternal) that names
// the first violation with its rank and round, Error(kInvalidArgument) for a world too large.
void prove(const Request& request, std::span<const Schedule> schedules, bool same_array);

// The same for what make() gives for the request, with two arrays and, where Schedule::in_place
// allows, with one.
void prove(const Request& request);

}  // namespace weft::schedule
