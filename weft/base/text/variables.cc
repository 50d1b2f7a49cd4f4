#include "weft/base/text/variables.h"

#include <cstdlib>

#include "weft/base/text/numbers.h"

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
  return parse_number<int>(value != nullptr ? value : "");
}

}  // namespace weft
