// From the words of a command line to what weft/schedule is asked.
#pragma once

#include <optional>

#include "weft/cli/commands.h"
#include "weft/schedule/schedule.h"

namespace weft::cli::internal {

inline constexpr std::int64_t kElementBytes = 4;  // what a chunk or a size is counted in: f32

// The request, with count 0. Throws Error(kInvalidArgument) in words of the command line for what
// contradicts itself or would have no effect (a --radix where no tree has one), and what
// Topology::load() throws.
schedule::Request request_of(const ScheduleChoice& choice, schedule::Algorithm algorithm);

// "2x4,3" is {4, 4, 3}. Throws Error(kInvalidArgument) for anything else.
std::vector<int> host_sizes(const std::string& text);

}  // namespace weft::cli::internal
