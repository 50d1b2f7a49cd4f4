// The name of a run, which is that of its folder.
#pragma once

#include <string>

namespace weft::observe {

// Throws Error(kInvalidArgument) if a run cannot have this name: it is not that of a single folder,
// or longer than the 255 bytes that file systems allow. Empty: a default name, which is right.
void check_run_name(const std::string& name);

}  // namespace weft::observe
