// Variables of the environment. An empty variable counts as one that is not set.
#pragma once

#include <optional>
#include <string>

namespace weft {

// nullptr: not set. Valid until the environment changes.
const char* variable_or_null(const char* name) noexcept;
// "": not set.
std::string variable(const char* name);
bool is_variable_set(const char* name) noexcept;
// nullopt: not set, or no whole number.
std::optional<int> number_variable(const char* name) noexcept;

}  // namespace weft
