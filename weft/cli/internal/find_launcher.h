// Finds the launcher of a job that a command names.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "weft/launch/control.h"

namespace weft::cli {

// The process number that `job` is. nullopt: it is none, or there is a run folder of this name.
std::optional<pid_t> process_in(const std::string& job);

// `job`: a run folder, the name of a run in runs/, or the process number of a launcher. Throws
// Error(kInvalidArgument) if the run has ended or has no launcher.
launch::LauncherId launcher_of(const std::string& job);

}  // namespace weft::cli
