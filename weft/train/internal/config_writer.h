// Writes values into a configuration as assignments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/log.h"

namespace weft::train::internal {

class ConfigWriter {
 public:
  explicit ConfigWriter(Config& config) : config_(config) {}
  void set(const std::string& key, const std::string& value) {
    config_.set(key + "=" + json_quote(value), "the program");
  }
  void set(const std::string& key, const char* value) { set(key, std::string(value)); }
  void set(const std::string& key, bool value) {
    config_.set(key + (value ? "=true" : "=false"), "the program");
  }
  void set(const std::string& key, std::int64_t value) {
    config_.set(key + "=" + std::to_string(value), "the program");
  }
  void set(const std::string& key, int value) { set(key, static_cast<std::int64_t>(value)); }
  void set(const std::string& key, double value) {
    config_.set(key + "=" + json_number(value), "the program");
  }
  void set(const std::string& key, const std::vector<std::string>& numbers) {
    std::string list;
    for (const auto& number : numbers) list += (list.empty() ? "" : ", ") + number;
    config_.set(key + "=[" + list + "]", "the program");
  }

 private:
  Config& config_;
};

}  // namespace weft::train::internal
