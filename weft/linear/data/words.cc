#include "weft/linear/data/text_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>

namespace weft::linear {
namespace {

// The exponent of a number, at most 10^15 from 0. No word has as many digits.
std::int64_t exponent_of(std::string_view number) {
  constexpr std::int64_t kMost = 1'000'000'000'000'000;
  const auto e = number.find_first_of("eE");
  if (e == std::string_view::npos) return 0;
  std::string_view digits = number.substr(e + 1);
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  std::int64_t exponent = 0;
  for (const char digit : digits) exponent = std::min(kMost, 10 * exponent + (digit - '0'));
  return is_negative ? -exponent : exponent;
}

// True if a decimal number that float64 cannot hold is too small, not too large: its first digit
// that is not 0 is behind the decimal point, once the exponent has moved the point.
bool is_tiny(std::string_view number) {
  const std::string_view mantissa = number.substr(0, number.find_first_of("eE"));
  const auto first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return true;
  const auto point = std::min(mantissa.find('.'), mantissa.size());
  const auto zeros = static_cast<std::int64_t>(first) - static_cast<std::int64_t>(point);
  return exponent_of(number) < zeros;
}

}  // namespace

std::optional<double> parse_number(std::string_view word) {
  const bool has_plus = word.starts_with('+');
  if (has_plus) word.remove_prefix(1);
  if (has_plus && (word.starts_with('+') || word.starts_with('-'))) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (end != word.data() + word.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range && is_tiny(word)) return 0.0;
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string shown(std::string_view word) {
  constexpr std::size_t kMost = 40;
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : word.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += "\\x";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  return text + (word.size() > kMost ? "…\"" : "\"");
}

}  // namespace weft::linear
