// Sums of numbers that are stored as decimal text (Store::add).
#pragma once

#include <cstdint>
#include <string>

#include "weft/base/text/numbers.h"

namespace weft::store::internal {

struct DecimalSum {
  std::int64_t value = 0;
  std::string refusal = {};  // not empty: there is no sum
};

// `text` empty: 0. `key` stands in the refusal.
inline DecimalSum decimal_sum(const std::string& key, const std::string& text, std::int64_t delta) {
  DecimalSum sum;
  const auto before =
      text.empty() ? std::optional<std::int64_t>(0) : parse_number<std::int64_t>(text);
  if (!before)
    sum.refusal = "add: the value of " + key.substr(0, 200) + " is not a number";
  else if (__builtin_add_overflow(*before, delta, &sum.value))
    sum.refusal = "add: the sum in " + key.substr(0, 200) + " exceeds 64 bits";
  return sum;
}

}  // namespace weft::store::internal
