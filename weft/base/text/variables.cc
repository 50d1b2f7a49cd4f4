#include "weft/base/text/variables.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace weft {

const char* variable_or_null(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string variable(const char* name) {
  const char* const value = variable_or_null(name);
  return value != nullptr ? value : "";
}

bool is_variable_set(const char* name) noexcept { return variable_or_null(name) != nullptr; }

std::optional<int> number_variable(const char* name) noexcept {
  const char* const value = variable_or_null(name);
  const std::string_view text = value != nullptr ? value : "";
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(number) : std::nullopt;
}

}  // namespace weft
