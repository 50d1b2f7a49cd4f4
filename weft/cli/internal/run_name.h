// How commands name a run.
#pragma once

#include <string>

namespace weft::cli {

// The folder of a run that is named by it, or by its name in runs/. Without a slash at the end. The
// folder need not exist.
std::string run_folder_of(const std::string& run);

}  // namespace weft::cli
