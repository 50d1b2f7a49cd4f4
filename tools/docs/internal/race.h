// Finds the fastest algorithm: by the planner's model over TCP on a flat topology, by simulation on
// a topology with hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/schedule/schedule.h"

namespace weft::docs::internal {

using SharedTopology = std::shared_ptr<const schedule::Topology>;

struct Winner {
  schedule::Algorithm algorithm = schedule::Algorithm::kRing;
  std::string name;  // "ring"; for the hierarchical one also the algorithm between the hosts
  double seconds = 0;
};

// The fastest of all algorithms that send messages, including two variants of the hierarchical one.
// `bytes`: size of the longer of input and output, in f32. Not for the barrier.
Winner winner(schedule::Collective collective, const SharedTopology& topology, std::int64_t bytes);

std::string duration(double seconds);       // "130 µs"
std::string byte_size(std::int64_t bytes);  // "64 KiB"; for powers of two

}  // namespace weft::docs::internal
