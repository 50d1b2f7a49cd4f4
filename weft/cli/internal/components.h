// Components that this weft was built without (docs/install.md).
#pragma once

#include <string>
#include <string_view>

#include "weft/base/error.h"

namespace weft::cli {

// True if this CMake option, such as WEFT_PS, was off when this weft was built.
bool is_off(std::string_view option);
// The error of a command or an option, `what`, whose component is absent. `component`: its name in
// the message, such as "the planner".
Error absent(const std::string& what, const std::string& component, std::string_view option);

// Throws it if --servers is given, and this weft has no parameter server.
void check_servers(int servers);

}  // namespace weft::cli
