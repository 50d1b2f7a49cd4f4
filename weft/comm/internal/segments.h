// How an array is shared out among the ranks of hosts of any size.
//
//   host 0, three ranks   |    0    |    1    |    2    |      each host cuts the array evenly
//                                                              among its ranks
//   host 1, two ranks     |      0       |      1       |
//   segments              |    a    | b  | c  |    d    |      a: ranks 0 and 0 · b: 1 and 0 · c: 1
//                                                              and 1 · d: 2 and 1
//
// A segment has one rank on each host, which alone sums it up there and alone carries it across:
// every rank has work, whatever its host's size, and with hosts of one size a rank has one segment.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/comm/internal/host_map.h"

namespace weft::comm::internal {

struct Segment {
  std::int64_t begin = 0, end = 0;
  std::vector<int> ranks;  // of the group, by host
};

// The segments of `count` elements that map.rank carries, ascending; none are empty. Cut at
// multiples of 64 bytes, so that no two ranks write into one cache line.
std::vector<Segment> segments_of(const HostMap& map, std::int64_t count, std::size_t element);

}  // namespace weft::comm::internal
