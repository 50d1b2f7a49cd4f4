// Programs of weft that the launcher starts.
#pragma once

#include <string>

namespace weft::launch::internal {

// `asked`, or without it the program of that name beside this one. `target` builds it. Throws
// Error(kUnavailable) if it is missing.
std::string sibling_program(const std::string& asked, const std::string& name,
                            const std::string& target);

}  // namespace weft::launch::internal
