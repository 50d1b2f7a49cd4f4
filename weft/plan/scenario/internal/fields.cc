#include "weft/plan/scenario/internal/fields.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"

namespace weft::plan::internal {

Fields::Fields(const nlohmann::json* object, std::string table)
    : object_(object), table_(std::move(table)) {
  if (object_ != nullptr && object_->is_null()) object_ = nullptr;
  if (object_ != nullptr && !object_->is_object())
    throw Error(Errc::kInvalidArgument, table_ + " must be an object: {…}");
}

void Fields::fail(const std::string& what) const {
  throw Error(Errc::kInvalidArgument, table_ + "." + name_ + " " + what);
}

const nlohmann::json* Fields::find(Names names) {
  const nlohmann::json* found = nullptr;
  for (const char* name : names) {
    asked_.insert(name);
    if (object_ == nullptr || found != nullptr) continue;
    const auto at = object_->find(name);
    if (at == object_->end() || at->is_null()) continue;
    found = &*at;
    name_ = name;
  }
  return found;
}

bool Fields::has(Names names) { return find(names) != nullptr; }

std::optional<double> Fields::number(Names names, Range range) {
  const nlohmann::json* value = find(names);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail("must be a number");
  const double x = value->get<double>();
  if (!std::isfinite(x) || x < range.low || x > range.high)
    fail(formatted("is %g; use a number from %g to %g", x, range.low, range.high));
  return x;
}

std::optional<std::int64_t> Fields::whole(Names names, Range range) {
  const auto x = number(names, range);
  if (!x) return std::nullopt;
  if (*x != std::floor(*x)) fail("must be a whole number");
  return static_cast<std::int64_t>(*x);
}

std::optional<std::string> Fields::text(Names names) {
  const nlohmann::json* value = find(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->dump();
  if (!value->is_string()) fail("must be a text");
  return value->get<std::string>();
}

std::optional<bool> Fields::flag(Names names) {
  const nlohmann::json* value = find(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number_integer()) return value->get<std::int64_t>() != 0;
  fail("must be true or false");
}

std::vector<double> Fields::numbers(Names names, Range range) {
  std::vector<double> all;
  const nlohmann::json* value = find(names);
  if (value == nullptr) return all;
  if (!value->is_array()) fail("must be a list of numbers");
  if (value->size() > 100'000) fail("has more than 100000 entries");
  for (const auto& one : *value) {
    if (!one.is_number()) fail("must be a list of numbers");
    const double x = one.get<double>();
    if (!std::isfinite(x) || x < range.low || x > range.high) fail("has an entry out of range");
    all.push_back(x);
  }
  return all;
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  if (object_ == nullptr) return names;
  for (const auto& [name, value] : object_->items()) {
    (void)value;
    if (asked_.count(name) == 0) names.push_back(table_ + "." + name.substr(0, 60));
  }
  return names;
}

}  // namespace weft::plan::internal
