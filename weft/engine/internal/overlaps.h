// Parameters that have memory in common, as after b.set_data(a.data()).
//
// In one process an optimizer of torch updates the common values once for each of them. The engine
// gives each parameter memory of its own, so it refuses them. One parameter that several modules
// have registered is no such case.
#pragma once

#include <vector>

#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

// Throws Error(kInvalidArgument) with the names of the first two such parameters. Reads no values.
void check_apart(const std::vector<Param>& params);

}  // namespace weft::engine::internal
