#include "weft/linear/data/text_file.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace weft::linear {
namespace {

// True if a number that float64 cannot hold is too small, not too large. Its exponent decides,
// since a mantissa without one would need hundreds of digits.
bool is_tiny(std::string_view number) {
  const auto exponent = number.find_first_of("eE");
  if (exponent != std::string_view::npos) return number.substr(exponent + 1).starts_with('-');
  const auto point = number.find('.');
  return point != std::string_view::npos &&
         number.substr(0, point).find_first_of("123456789") == std::string_view::npos;
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
