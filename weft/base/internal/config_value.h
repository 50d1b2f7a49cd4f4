// What config.cc needs to know about a value apart from reading it: whether it keeps to its limits,
// and how it is written.
#pragma once

#include <string>

#include "weft/base/config.h"

namespace weft::internal {

// Whether the value, or each element of a list, keeps to the limits; numbers must be finite.
bool fits(const ConfigValue& value, const Limits& limits);

// What a key takes, for a message: "a whole number of at least 1", "one of sgd, adamw".
std::string expectation(const Key& key);

// The value as TOML that reads back as the same value.
std::string to_toml(const ConfigValue& value);

}  // namespace weft::internal
