// Functions of PlannerComponent (train/internal/planner.h).
#pragma once

#include <string>

#include "weft/comm/group.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

// Measures the blocks of a program's task with one sample and with its part of a batch, at most 64.
// Returns the profile as TOML. Collective.
std::string profile_program(const Task& task, const Options& options, const Group& world);

}  // namespace weft::train::internal
