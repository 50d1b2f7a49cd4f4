#include "weft/base/text/numbers.h"

#include <cstdarg>
#include <cstdio>

namespace weft {

std::string formatted(const char* format, ...) {
  std::va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  char text[128];
  const auto length = static_cast<std::size_t>(std::vsnprintf(text, sizeof text, format, values));
  std::string result(text, length < sizeof text ? length : 0);
  if (length >= sizeof text) {
    result.resize(length);
    std::vsnprintf(result.data(), length + 1, format, again);
  }
  va_end(again);
  va_end(values);
  return result;
}

}  // namespace weft
