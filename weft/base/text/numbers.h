// Numbers in texts: from text, and as text.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace weft {

// The number that is the whole text, by std::from_chars(). nullopt: it is none, or out of range.
template <class Number>
std::optional<Number> parse_number(std::string_view text) noexcept {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// The same, of a number that is at least 0.
template <class Number = int>
std::optional<Number> parse_count(std::string_view text) noexcept {
  const auto number = parse_number<Number>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

// snprintf() into a string: formatted("%.1f ms", seconds * 1e3). As in the C locale, also if the
// program has set another one.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);

// For people: four significant digits, or NaN. A number below 1 never becomes 1: 0.99996 is
// "0.9999".
std::string shortened(double value);
// For log lines: `decimals` digits after the point; below 1, as shortened(). So a number that is
// not 0 never becomes 0.
double rounded(double value, int decimals);

}  // namespace weft
