// Resolves the name of a run on the command line.
#pragma once

#include <string>

namespace weft::cli {

// The folder of a run, given as a path or as its name in runs/. The name counts if the path is no
// run, such as the recipe's folder of the same name. The result has no slash at the end. The folder
// need not exist. Throws Error(kInvalidArgument) if `run` is empty.
std::string run_folder_of(const std::string& run);

}  // namespace weft::cli
