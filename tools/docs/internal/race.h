// Which algorithm ends first: by the planner's model over TCP where ranks are all alike, by
// simulation on hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/schedule/schedule.h"

namespace weft::docs::internal {

using SharedTopology = std::shared_ptr<const schedule::Topology>;

struct Winner {
  schedule::Algorithm algorithm = schedule::Algorithm::kRing;
  std::string name;  // "ring"; of the hierarchical one also what goes across
  double seconds = 0;
};

// `bytes` of f32, of the longer of input and output: the fastest of all algorithms that send
// messages; the hierarchical one by two ways across. No barrier.
Winner winner(schedule::Collective collective, const SharedTopology& topology, std::int64_t bytes);

std::string duration(double seconds);       // "130 µs"
std::string byte_size(std::int64_t bytes);  // "64 KiB", of powers of two

}  // namespace weft::docs::internal
