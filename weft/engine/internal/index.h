// Ranks, units and parameters are numbered by int, as in the interfaces of torch and MPI;
// containers by std::size_t.
#pragma once

#include <cstddef>

namespace weft::engine::internal {

inline std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace weft::engine::internal
