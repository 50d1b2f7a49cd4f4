// `weft schedule show` of a pipeline schedule.
#pragma once

#include <string>
#include <vector>

#include "weft/cli/commands.h"

namespace weft::cli::internal {

// The names of all pipeline schedules.
std::vector<std::string> pipeline_names();
bool is_pipeline(const std::string& name);

// Whether the command has options that only pipelines have.
bool asks_for_pipeline(const ScheduleCommand& command);

// Shows it; returns the exit code. Throws Error(kInvalidArgument) in words of the command line for
// options of collectives, and what schedule::pipeline::make() and its pictures throw.
int show_pipeline(const ScheduleCommand& command);

// One line for each, as `weft schedule list` has for collectives.
void list_pipelines(bool json);

void write_picture(const std::string& path, const std::string& svg);

}  // namespace weft::cli::internal
