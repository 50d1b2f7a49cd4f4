// Finds the launcher of a job that a command names.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "weft/launch/control.h"

namespace weft::cli {

// The process number in `text`, if it is one.
std::optional<pid_t> process_in(const std::string& text);

// `job`: the process number of a launcher, a run folder, or the name of a run in runs/. Throws
// Error(kInvalidArgument) if the run has ended or has no launcher.
launch::LauncherId launcher_of(const std::string& job);

}  // namespace weft::cli
