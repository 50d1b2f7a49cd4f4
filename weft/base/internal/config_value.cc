#include "weft/base/internal/config_value.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include "weft/base/log.h"

namespace weft {
namespace internal {
namespace {

bool element_fits(bool, const Limits&) { return true; }

bool element_fits(double value, const Limits& limits) {
  return std::isfinite(value) && (!limits.min || value >= *limits.min) &&
         (!limits.max || value <= *limits.max) && (!limits.below || value < *limits.below);
}

bool element_fits(std::int64_t value, const Limits& limits) {
  return element_fits(static_cast<double>(value), limits);
}

bool element_fits(const std::string& value, const Limits& limits) {
  return limits.choices.empty() ||
         std::find(limits.choices.begin(), limits.choices.end(), value) != limits.choices.end();
}

std::string element_to_toml(bool value) { return value ? "true" : "false"; }
std::string element_to_toml(std::int64_t value) { return std::to_string(value); }
std::string element_to_toml(const std::string& value) {
  return json_quote(value);
}  // TOML's basic strings accept JSON's escapes
std::string element_to_toml(double value) {
  std::string text = json_number(value);
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";  // else it would be parsed as an integer
  return text;
}

std::string range(const Limits& limits) {
  if (limits.min && limits.max)
    return " from " + json_number(*limits.min) + " to " + json_number(*limits.max);
  std::string text;
  if (limits.min) text += " of at least " + json_number(*limits.min);
  if (limits.max) text += " of at most " + json_number(*limits.max);
  if (limits.below) text += (text.empty() ? " below " : " and below ") + json_number(*limits.below);
  return text;
}

}  // namespace

bool fits(const ConfigValue& value, const Limits& limits) {
  return std::visit(
      [&]<class T>(const T& held) {
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
          return element_fits(held, limits);
        } else {
          return std::all_of(held.begin(), held.end(),
                             [&](const auto& element) { return element_fits(element, limits); });
        }
      },
      value);
}

std::string expectation(const Key& key) {
  if (!key.limits.choices.empty()) {
    const bool list = std::holds_alternative<std::vector<std::string>>(key.fallback);
    std::string text = list ? "a list of" : "one of";
    for (std::size_t i = 0; i < key.limits.choices.size(); ++i)
      text += (i ? ", " : " ") + key.limits.choices[i];
    return text;
  }
  constexpr const char* kTypes[] = {
      "true or false",           "a whole number",    "a number",         "a string",
      "a list of whole numbers", "a list of numbers", "a list of strings"};
  return kTypes[key.fallback.index()] + range(key.limits);
}

std::string to_toml(const ConfigValue& value) {
  return std::visit(
      [&]<class T>(const T& held) -> std::string {
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
          return element_to_toml(held);
        } else {
          std::string text = "[";
          for (std::size_t i = 0; i < held.size(); ++i)
            text += (i ? ", " : "") + element_to_toml(held[i]);
          return text + "]";
        }
      },
      value);
}

}  // namespace internal

std::optional<std::string> nearest(std::string_view name,
                                   const std::vector<std::string>& candidates) {
  const auto lower = [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  };
  // Optimal string alignment distance (Damerau 1964), by rows; `before` is the row two up.
  const auto distance = [&](std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
      before = std::exchange(above, row);
      row[0] = i;
      for (std::size_t j = 1; j <= b.size(); ++j) {
        const bool same = lower(a[i - 1]) == lower(b[j - 1]);
        row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
        const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                             lower(a[i - 2]) == lower(b[j - 1]);
        if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    return row[b.size()];
  };
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(name.size() / 3, 1) + 1;
  if (name.size() > 200) return best;  // not a typing mistake, and the time grows with the square
  for (const std::string& candidate : candidates) {
    const std::size_t edits = distance(name, candidate);
    if (edits < best_distance) {
      best = candidate;
      best_distance = edits;
    }
  }
  return best;
}

}  // namespace weft
