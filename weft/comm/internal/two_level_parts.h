// Helpers shared by the source files of TwoLevel.
#pragma once

#include <algorithm>

#include "weft/comm/internal/two_level.h"

namespace weft::comm::internal {

// The operation within a level: an average is a sum that is divided once, by the size of the whole
// group.
inline ReduceOp within(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

// Number of elements of a rank's input and output.
struct Extent {
  std::int64_t input, output;
};

inline Extent extent_of(schedule::Collective collective, int world, std::int64_t count) {
  const std::int64_t all = count * world;
  switch (collective) {
    case schedule::Collective::kReduceScatter:
    case schedule::Collective::kScatter: return {all, count};
    case schedule::Collective::kAllGather:
    case schedule::Collective::kGather: return {count, all};
    case schedule::Collective::kAllToAll: return {all, all};
    default: return {count, count};
  }
}

// What a host sends to the others about its ranks' calls. Padding is not sent.
struct TwoLevel::Header {
  net::Signature first;  // of its first rank
  net::Signature other;  // of a rank that makes a different call, if any
  std::int32_t first_rank = -1, other_rank = -1;
  std::uint32_t flat = 0, unused = 0;
};

}  // namespace weft::comm::internal
