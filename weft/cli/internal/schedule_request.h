// Converts command-line options to requests of weft/schedule.
#pragma once

#include <optional>

#include "weft/cli/commands.h"
#include "weft/schedule/schedule.h"

namespace weft::cli::internal {

inline constexpr std::int64_t kElementBytes = 4;  // chunks and sizes count f32 elements

// The request, with count 0. Throws Error(kInvalidArgument), naming the option, if options
// contradict each other or have no effect (--radix for an algorithm without one). Also throws the
// errors of Topology::load().
schedule::Request request_of(const ScheduleChoice& choice, schedule::Algorithm algorithm);

// "2x4,3" is {4, 4, 3}. Throws Error(kInvalidArgument) for anything else.
std::vector<int> host_sizes(const std::string& text);

}  // namespace weft::cli::internal
