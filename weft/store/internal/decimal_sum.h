// Sums of numbers that are stored as decimal text (Store::add).
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

namespace weft::store::internal {

struct DecimalSum {
  std::int64_t value = 0;
  std::string refusal = {};  // not empty: there is no sum
};

// `text` empty: 0. `key` stands in the refusal.
inline DecimalSum decimal_sum(const std::string& key, const std::string& text, std::int64_t delta) {
  DecimalSum sum;
  std::int64_t before = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, before);
  if (!text.empty() && (error != std::errc() || end != last))
    sum.refusal = "add: the value of " + key.substr(0, 200) + " is not a number";
  else if (__builtin_add_overflow(before, delta, &sum.value))
    sum.refusal = "add: the sum in " + key.substr(0, 200) + " exceeds 64 bits";
  return sum;
}

}  // namespace weft::store::internal
