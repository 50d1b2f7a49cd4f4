// Implements `weft schedule show` for pipeline schedules.
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

// Shows the schedule and returns the exit code. Throws Error(kInvalidArgument), naming the option,
// for options of collectives. Also throws the errors of schedule::pipeline::make() and pictures.
int show_pipeline(const ScheduleCommand& command);

// Prints one line for each pipeline schedule, as `weft schedule list` does for collectives.
void list_pipelines(bool json);

void write_picture(const std::string& path, const std::string& svg);

}  // namespace weft::cli::internal
