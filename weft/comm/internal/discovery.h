// Helpers of rank discovery: numbers in environment variables, and the error for a wrong one.
#pragma once

#include <charconv>
#include <optional>
#include <string>

#include "weft/base/error.h"

namespace weft::comm::internal {

[[noreturn]] inline void bad_discovery(const std::string& message) {
  throw Error(Errc::kBadConfig, message, {"rank discovery", -1, -1});
}

// Parses a whole number >= 0. Returns nothing for any other text.
inline std::optional<int> to_number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace weft::comm::internal
