// Compares the learning rates of ranks.
#pragma once

#include <algorithm>
#include <cmath>

namespace weft::optim {

// Two ranks compute the same rate. Its last bits may depend on the processor.
inline bool are_equal_rates(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

}  // namespace weft::optim
