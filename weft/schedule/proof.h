// Proves that the schedules of a collective are correct: runs all ranks at once, on symbols instead
// of numbers.
//
// The run records for every element which ranks have contributed to it, from which place of their
// input, and in which order they were combined. Consecutive elements with the same record are
// stored as one, so long arrays cost no more than short ones; 128 ranks take some milliseconds. The
// proof checks that:
//   - every message has a receiver in the same round with the same length, so no rank waits
//     forever;
//   - nothing is read that was not written, is out of bounds, or is written by a peer or a message
//     at the same time; the input is never written;
//   - in shared memory only kMeet orders ranks: a rank reads what was complete at the last meeting,
//     and no rank leaves while peers may read its memory;
//   - each rank ends with exactly one contribution of each rank, or with exactly the right block;
//     after a barrier, each rank has heard of every rank;
//   - all ranks of an all-reduce combined in the same order, and so have the same bits;
//   - the numbers of rounds and elements are those that cost() promises.
#pragma once

#include <span>

#include "weft/schedule/schedule.h"

namespace weft::schedule {

// Largest world that can be proved.
inline constexpr int kMaxProvedWorld = 256;

// Checks the schedules of all ranks, listed by rank. `same_array`: input and output are one array
// where their lengths agree and Schedule::in_place allows it. request.rank is ignored. Throws
// Error(kInternal) for the first violation, naming its rank and round; Error(kInvalidArgument) if
// the world is too large.
void prove(const Request& request, std::span<const Schedule> schedules, bool same_array);

// Checks the schedules that make() returns for the request: with two arrays and, where
// Schedule::in_place allows it, with one.
void prove(const Request& request);

}  // namespace weft::schedule
