// Which run of a recipe `--resume` continues.
#pragma once

#include <optional>
#include <string>

namespace weft::train::internal {

// The name of the recipe's newest run in `parent`: names begin with the date. Runs named by hand
// are not looked at.
std::optional<std::string> newest_run(const std::string& parent, const std::string& recipe);

}  // namespace weft::train::internal
