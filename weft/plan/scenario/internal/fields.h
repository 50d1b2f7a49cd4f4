// Reads the fields of a JSON object by one of several names, with bounds.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weft::plan::internal {

class Fields {
 public:
  // `object` must outlive the reader. `table` names it in messages. nullptr: no fields.
  Fields(const nlohmann::json* object, std::string table);

  using Names = std::initializer_list<const char*>;
  struct Range {
    double low = 1, high = 1e9;
  };
  // nullopt if the field is missing or null. Throws Error(kInvalidArgument), naming the field.
  std::optional<std::int64_t> whole(Names names, Range range);
  std::optional<double> number(Names names, Range range);
  std::optional<std::string> text(Names names);
  std::optional<bool> flag(Names names);
  std::vector<double> numbers(Names names, Range range);
  bool has(Names names);

  // Names of fields that nobody asked for.
  std::vector<std::string> unknown() const;

 private:
  const nlohmann::json* find(Names names);
  [[noreturn]] void fail(const std::string& what) const;

  const nlohmann::json* object_;
  std::string table_;
  std::string name_;  // Of the field found last.
  std::set<std::string> asked_;
};

}  // namespace weft::plan::internal
