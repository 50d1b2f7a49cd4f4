// The settings of Options as one table: a key of a recipe with its help and limits, beside the
// member that has its value and its default. The schema, options_of() and config_of() are passes
// over the table (settings.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/base/config.h"
#include "weft/train/internal/limits.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class SettingsPass {
 public:
  SettingsPass() = default;
  SettingsPass(const SettingsPass&) = delete;
  SettingsPass& operator=(const SettingsPass&) = delete;
  virtual ~SettingsPass() = default;

  // A truth value, a number, a text, or a list of numbers.
  template <class T>
  void operator()(const char* key, T& member, const char* help, Limits limits = {}) {
    ConfigValue value = value_of(member);
    visit({key, value, help, std::move(limits)}, value);
    set(member, value);
  }
  // An enumeration or a truth value, by the names of its values in their order.
  template <class T>
  void choice(const char* key, T& member, const char* help, std::vector<std::string> names) {
    ConfigValue value = names.at(static_cast<std::size_t>(member));
    visit({key, value, help, one_of(names)}, value);
    const auto at = std::find(names.begin(), names.end(), std::get<std::string>(value));
    member = static_cast<T>(at - names.begin());
  }

 private:
  // `value` is the member's; changing it changes the member.
  virtual void visit(const Key& key, ConfigValue& value) = 0;

  template <class T>
  static ConfigValue value_of(const T& member) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      return static_cast<std::int64_t>(member);
    } else if constexpr (std::is_same_v<T, std::vector<int>>) {
      return std::vector<std::int64_t>(member.begin(), member.end());
    } else {
      return member;
    }
  }
  template <class T>
  static void set(T& member, const ConfigValue& value) {
    if constexpr (std::is_same_v<T, bool>) {
      member = std::get<bool>(value);
    } else if constexpr (std::is_integral_v<T>) {
      member = static_cast<T>(std::get<std::int64_t>(value));
    } else if constexpr (std::is_same_v<T, std::vector<int>>) {
      const auto& all = std::get<std::vector<std::int64_t>>(value);
      member.assign(all.begin(), all.end());
    } else {
      member = std::get<T>(value);
    }
  }
};

// Calls `pass` for each setting, in the order in which they are shown.
void each_setting(Options& options, SettingsPass& pass);

}  // namespace weft::train::internal
