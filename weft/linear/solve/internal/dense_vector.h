// Loops over vectors as long as the weights, which a solver of several ranks runs in each round.
// The inner loops have a constant length, so that the compiler vectorizes them.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace weft::linear::internal {

inline constexpr std::size_t kLanes = 8;

inline double sum_of(const std::array<double, kLanes>& sums) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// |x|².
inline double squared_length(std::span<const double> x) {
  std::array<double, kLanes> sums{};
  std::size_t j = 0;
  for (; j + kLanes <= x.size(); j += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) sums[k] += x[j + k] * x[j + k];
  }
  for (; j < x.size(); ++j) sums[0] += x[j] * x[j];
  return sum_of(sums);
}

// u := (u - w) factor. Returns |u|².
inline double to_changes(std::span<double> u, std::span<const double> w, double factor) {
  std::array<double, kLanes> sums{};
  std::size_t j = 0;
  for (; j + kLanes <= u.size(); j += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      const double change = (u[j + k] - w[j + k]) * factor;
      u[j + k] = change;
      sums[k] += change * change;
    }
  }
  for (; j < u.size(); ++j) {
    u[j] = (u[j] - w[j]) * factor;
    sums[0] += u[j] * u[j];
  }
  return sum_of(sums);
}

// w += factor u.
inline void add_scaled(std::span<double> w, std::span<const double> u, double factor) {
  std::size_t j = 0;
  for (; j + kLanes <= w.size(); j += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) w[j + k] += factor * u[j + k];
  }
  for (; j < w.size(); ++j) w[j] += factor * u[j];
}

}  // namespace weft::linear::internal
