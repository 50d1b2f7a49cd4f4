// Which run a recipe goes on with.
#pragma once

#include <string>

namespace weft::train::internal {

// The name of the recipe's newest run in `parent`: names begin with the date. Throws Error(kInvalidArgument) where there is none.
std::string newest_run(const std::string& parent, const std::string& recipe);

}  // namespace weft::train::internal
