// Which is faster here and now for a small model: common weights of which each rank updates a share, or private ones that each rank updates
// whole?
//
// That turns on how fast cache lines cross between these processors, which differs from machine to machine and from hour to hour, so it is
// measured: some steps of each on gradients of zero with a learning rate of zero, reading all weights after each as a forward pass does.
#pragma once

#include <vector>

#include "weft/engine/internal/sync.h"
#include "weft/engine/internal/updater.h"

namespace weft::parallel::internal {

// Collective; the same answer on every rank. Weights are left as they are; gradients are dropped.
bool whole_is_faster(const Subject& subject, const Layout& layout, const std::vector<float*>& shared, const std::vector<float*>& own);

// Models of more elements always share: the work saved outweighs any line transfer.
constexpr std::int64_t kTrialMost = 1 << 20;

}  // namespace weft::parallel::internal
