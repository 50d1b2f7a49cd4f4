// Settings as tables: a key of a recipe with its help, its limits and what uses it, beside the
// member that has its value and its default. settings.cc has the table of Options,
// recipe_settings.cc the one of a recipe's model and data. The schema, reading and writing are
// passes over these tables. The checks for unused keys (key_uses.h) and the page of keys
// (docs/recipe-keys.md) take all that they need from the schema.
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

inline UsedBy for_models(std::vector<std::string> names) {
  return {"model.name", std::move(names)};
}
inline UsedBy for_data(std::vector<std::string> names) { return {"data.name", std::move(names)}; }
inline UsedBy for_optimizers(std::vector<std::string> names) {
  return {"optimizer.name", std::move(names)};
}
inline UsedBy for_strategies(std::vector<std::string> names) {
  return {"strategy.name", std::move(names)};
}
inline UsedBy for_schedules(std::vector<std::string> names) {
  return {"schedule.name", std::move(names)};
}
// The models with batch norms.
inline UsedBy for_resnets() {
  return for_models({"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"});
}

class SettingsVisitor {
 public:
  SettingsVisitor() = default;
  SettingsVisitor(const SettingsVisitor&) = delete;
  SettingsVisitor& operator=(const SettingsVisitor&) = delete;
  virtual ~SettingsVisitor() = default;

  // A truth value, a number, a text, or a list of numbers.
  template <class T>
  void operator()(const char* key, T& member, const char* help, Limits limits = {},
                  UsedBy used_by = {}) {
    ConfigValue value = value_of(member);
    visit({key, value, help, std::move(limits), std::move(used_by)}, value);
    set(member, value);
  }
  // An enumeration or a truth value, by the names of its values in their order.
  template <class T>
  void choice(const char* key, T& member, const char* help, std::vector<std::string> names,
              UsedBy used_by = {}) {
    ConfigValue value = names.at(static_cast<std::size_t>(member));
    visit({key, value, help, one_of(names), std::move(used_by)}, value);
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

// Adds the keys to a schema.
class SchemaVisitor final : public SettingsVisitor {
 public:
  explicit SchemaVisitor(Schema& schema) : schema_(schema) {}

 private:
  void visit(const Key& key, ConfigValue&) override { schema_.add(key); }
  Schema& schema_;
};

// Gives the members the values of a configuration.
class ReadingVisitor final : public SettingsVisitor {
 public:
  explicit ReadingVisitor(const Config& config) : config_(config) {}

 private:
  void visit(const Key& key, ConfigValue& value) override { value = config_.get(key.name); }
  const Config& config_;
};

// Throws Error(kBadConfig), saying where it was set, for a train.device that is no device.
void check_device_key(const Config& config);

// Calls `visit` for each setting of a run, in the order in which they are shown.
void each_setting(Options& options, SettingsVisitor& visit);

}  // namespace weft::train::internal
