// Room in the memory of the machines for what all ranks are about to allocate.
#pragma once

#include <cstdint>
#include <string>

#include "weft/comm/group.h"

namespace weft::train::internal {

// Describes a machine on which `bytes` of each of its ranks take more than `share` of the available
// memory: "its ranks' <what> take 900 MiB, and 1200 MiB are available". Empty if there is none.
// Collective.
std::string too_small(const Group& world, std::int64_t bytes, const std::string& what,
                      double share);

}  // namespace weft::train::internal
