// Refines a layout beyond the search's space, and explains why one step is slower than another.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/step/step.h"

namespace weft::plan::internal {

// Whole samples for each replica, at least one, by their speeds: rounded by the largest remainders,
// so that they add up to `samples`. There are at least two samples for each replica.
std::vector<int> divide_samples(const std::vector<double>& speeds, int samples);

// Tries, in this order: batch shares of replicas by the speed of their devices; cuts of a
// transformer's stages by the time of blocks on the devices of each stage. Keeps what makes the
// step faster and fits.
Layout refine(const Job& job, const Step& step, double headroom);

// "3.2 % slower: +0.21 s bubble, +0.05 s tensor parallelism".
std::string why_slower(const Step& step, const Step& best);

}  // namespace weft::plan::internal
