#include "weft/train/internal/newest_run.h"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "weft/observe/run/run_folder.h"

namespace weft::train::internal {
namespace {

// When a run began: its date, and its number among the runs of that second.
using Start = std::pair<std::string, std::int64_t>;

// Accepts "2026-01-31-235959-mnist", and "2026-01-31-235959-2-mnist" for the second run in the same
// second. Rejects "…-fashion-mnist".
std::optional<Start> start_of(const std::string& name, const std::string& recipe) {
  constexpr std::string_view kDate = "dddd-dd-dd-dddddd-";
  if (name.size() < kDate.size() + recipe.size() || !name.ends_with(recipe)) return std::nullopt;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t i = 0; i < kDate.size(); ++i) {
    if (kDate[i] == 'd' ? !is_digit(name[i]) : name[i] != '-') return std::nullopt;
  }
  const std::string date = name.substr(0, kDate.size()),
                    number = name.substr(kDate.size(), name.size() - kDate.size() - recipe.size());
  if (number.empty()) return Start{date, 1};
  std::int64_t nth = 0;
  const char* const last = number.data() + number.size() - 1;
  const auto [end, error] = std::from_chars(number.data(), last, nth);
  const bool good = is_digit(number.front()) && error == std::errc() && end == last && *last == '-';
  return good ? std::optional(Start{date, nth}) : std::nullopt;
}

}  // namespace

std::optional<std::string> newest_run(const std::string& parent, const std::string& recipe) {
  std::optional<Start> last;
  std::optional<std::string> newest;
  const std::string ending = observe::recipe_in_name(recipe);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto start = start_of(name, ending);
    if (!start || (last && *start < *last)) continue;
    last = start;
    newest = name;
  }
  return newest;
}

}  // namespace weft::train::internal
