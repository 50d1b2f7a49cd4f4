// For tests: the 16-bit formats by their definitions, and the levels that this processor supports.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "weft/kernels/internal/level.h"

namespace weft::kernels::internal {

inline std::vector<const Level*> levels() {
  std::vector<const Level*> all = {&kGeneric};
  for (const char* limit : {"avx2", ""}) {
    const auto& level = choose_level(limit);
    if (&level != all.back()) all.push_back(&level);
  }
  return all;
}

// Decodes a 16-bit format by its definition, in double: sign, exponent bits, mantissa bits.
inline double decode(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// Returns the format's value that is nearest to `value`, with ties to the even mantissa. It
// searches the finite values, which have the order of their bits.
inline std::uint16_t encode(double value, int exponent_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  int low = 0;
  int high = infinity;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (decode(static_cast<std::uint16_t>(middle), exponent_bits) <= std::fabs(value) ? low : high) =
        middle;
  }
  const double below = decode(static_cast<std::uint16_t>(low), exponent_bits);
  // Infinity counts as the value that would follow the largest.
  const double above =
      high == infinity
          ? below + (below - decode(static_cast<std::uint16_t>(low - 1), exponent_bits))
          : decode(static_cast<std::uint16_t>(high), exponent_bits);
  const double middle = below + (above - below) / 2;
  const bool up = std::fabs(value) > middle || (std::fabs(value) == middle && (low & 1));
  return static_cast<std::uint16_t>((up ? high : low) | (std::signbit(value) ? 0x8000 : 0));
}

inline int exponent_bits(DType type) { return type == DType::kF16 ? 5 : 8; }

}  // namespace weft::kernels::internal
