// Finds the run of a recipe that `--resume` continues.
#pragma once

#include <optional>
#include <string>

namespace weft::train::internal {

// Name of the recipe's newest run in `parent`, by the date at the start of the name. Runs with a
// name given by the user (run.name) are ignored.
std::optional<std::string> newest_run(const std::string& parent, const std::string& recipe);

}  // namespace weft::train::internal
