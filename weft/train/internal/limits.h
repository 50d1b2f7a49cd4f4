// Limits of keys, in short.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/base/config.h"

namespace weft::train::internal {

inline Limits at_least(double min) { return {.min = min, .max = {}, .choices = {}}; }
inline Limits between(double min, double max) { return {.min = min, .max = max, .choices = {}}; }
inline Limits at_least_0_below_1() { return {.min = 0, .max = {}, .choices = {}, .below = 1}; }
inline Limits one_of(std::vector<std::string> choices) {
  return {.min = {}, .max = {}, .choices = std::move(choices)};
}

}  // namespace weft::train::internal
