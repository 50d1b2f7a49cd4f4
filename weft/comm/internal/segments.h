// How an array is divided among the ranks of hosts of different sizes.
//
//   host 0, three ranks   |    0    |    1    |    2    |
//   host 1, two ranks     |      0       |      1       |
//   segments              |    a    | b  | c  |    d    |
//
// Each host cuts the array evenly among its ranks. Segment a belongs to ranks 0 and 0 of the two
// hosts, b to 1 and 0, c to 1 and 1, d to 2 and 1.
//
// A segment has one rank on each host. Only this rank sums the segment on its host and exchanges it
// with other hosts. So every rank has work, for any host size. If all hosts have the same size,
// each rank has one segment.
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
