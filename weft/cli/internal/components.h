// The commands and options of components, which a build can leave out (docs/install.md). The
// commands and options of an absent one are not added, so the parser, the help, the manual page and
// the completion scripts do not know them. Only the error of such a word does.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "weft/base/error.h"

namespace weft::cli {

// The CMake options of the components.
inline constexpr std::string_view kLinearModels = "WEFT_LINEAR";
inline constexpr std::string_view kParameterServer = "WEFT_PS";
inline constexpr std::string_view kPlanner = "WEFT_PLAN";

// True if this weft was built with the component.
constexpr bool has(std::string_view component) {
  return std::string_view(WEFT_OFF).find(component) == std::string_view::npos;
}

// The error of a command, such as "plan auto", or of an option, such as "run --servers", that an
// absent component would add. It names the component and its CMake option. Empty for other words.
std::optional<Error> absent(const std::string& words);

}  // namespace weft::cli
