#include "weft/train/internal/newest_run.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "weft/observe/run/run_folder.h"

namespace weft::train::internal {
namespace {

// Accepts "2026-01-31-235959-mnist", and "2026-01-31-235959-2-mnist" for the second run in the same
// second. Rejects "…-fashion-mnist".
bool is_run_of(const std::string& name, const std::string& recipe) {
  constexpr std::string_view kDate = "dddd-dd-dd-dddddd-";
  if (name.size() < kDate.size() + recipe.size() || !name.ends_with(recipe)) return false;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t i = 0; i < kDate.size(); ++i) {
    if (kDate[i] == 'd' ? !is_digit(name[i]) : name[i] != '-') return false;
  }
  const std::string number = name.substr(kDate.size(), name.size() - kDate.size() - recipe.size());
  if (number.empty()) return true;
  return number.size() > 1 && number.back() == '-' &&
         std::all_of(number.begin(), number.end() - 1, is_digit);
}

}  // namespace

std::optional<std::string> newest_run(const std::string& parent, const std::string& recipe) {
  std::string newest;
  const std::string ending = observe::recipe_in_name(recipe);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_run_of(name, ending)) newest = std::max(newest, name);
  }
  if (newest.empty()) return std::nullopt;
  return newest;
}

}  // namespace weft::train::internal
