// Finds the launcher of a job that a command names.
#pragma once

#include <sys/types.h>

#include <string>

namespace weft::cli {

// `job`: the process number of a launcher, a run folder, or the name of a run in runs/. Throws
// Error(kInvalidArgument) if the run has ended or has no launcher.
pid_t launcher_of(const std::string& job);

}  // namespace weft::cli
