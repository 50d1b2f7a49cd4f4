// Measures which is faster for a small model on this machine: shared weights, of which each rank
// updates a share, or private weights, which each rank updates completely.
//
// The result depends on the speed at which cache lines move between cores, which differs between
// machines and over time. So it times some steps of each kind, with zero gradients and a learning
// rate of zero, and reads all weights after each step as a forward pass does.
#pragma once

#include <vector>

#include "weft/engine/internal/transport.h"

namespace weft::engine::internal {

// Collective; the same answer on every rank. Weights are left as they are; gradients are dropped.
bool private_is_faster(const TransportContext& context, const std::vector<std::byte*>& shared,
                       const std::vector<std::byte*>& own);

// Larger models always share weights: the saved work outweighs the transfer of cache lines.
constexpr std::int64_t kTrialMostBytes = 4 << 20;

}  // namespace weft::engine::internal
