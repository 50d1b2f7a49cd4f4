// SharedBatches for ranks on several hosts: in the store of the job.
//
//   <prefix>/range       "next end": the numbers that are not given out; changed by compare-and-set
//   <prefix>/done/<rank> what the rank has done, written at most every 0.2 s, and at a meeting
//
// The first rank of a worker takes several numbers at a time, at most a quarter of its even
// share of those that are left, and tells each one to the other ranks of the worker. The prefix is
// new for each object, so a job that has formed again reads nothing of an earlier group. Keys stay
// in the store until the job ends: about 200 bytes a rank.
#pragma once

#include <memory>

#include "weft/strategy/shared_batches.h"

namespace weft::strategy::internal {

// Collective.
std::unique_ptr<SharedBatches> store_batches(const Group& ranks, const WorkerRank& place,
                                             int most_at_a_time,
                                             std::shared_ptr<store::Store> store);

}  // namespace weft::strategy::internal
