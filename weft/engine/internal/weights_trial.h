// Which is faster here and now for a small model: common weights of which each rank updates a
// share, or private ones that each rank updates whole?
//
// That turns on how fast cache lines cross between these processors, which differs from machine to
// machine and from hour to hour, so it is measured: some steps of each on gradients of zero with a
// learning rate of zero, reading all weights after each as a forward pass does.
#pragma once

#include <vector>

#include "weft/engine/internal/transport.h"

namespace weft::parallel::internal {

// Collective; the same answer on every rank. Weights are left as they are; gradients are dropped.
bool private_is_faster(const Subject& subject, const std::vector<std::byte*>& shared,
                       const std::vector<std::byte*>& own);

// Larger models always share: the work saved outweighs any line transfer.
constexpr std::int64_t kTrialMostBytes = 4 << 20;

}  // namespace weft::parallel::internal
