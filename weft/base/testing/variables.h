// For the tests of any folder: variables of the environment for one test. Not installed.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace weft {

// Sets the variables (nullopt: unsets them), and restores the former values at the end. No other
// thread may read the environment meanwhile.
class TestVariables {
 public:
  using Values = std::map<std::string, std::optional<std::string>>;

  explicit TestVariables(const Values& values) {
    for (const auto& [name, value] : values) {
      const char* const before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>(before);
    }
    apply(values);
  }
  TestVariables(const std::string& name, const std::optional<std::string>& value)
      : TestVariables(Values{{name, value}}) {}
  ~TestVariables() { apply(before_); }
  TestVariables(const TestVariables&) = delete;
  TestVariables& operator=(const TestVariables&) = delete;

 private:
  static void apply(const Values& values) {
    for (const auto& [name, value] : values)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }

  Values before_;
};

}  // namespace weft
