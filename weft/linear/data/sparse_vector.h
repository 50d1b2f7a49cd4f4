// The inner loops of the solvers: products of a sparse row with a dense vector.
#pragma once

#include <cstddef>
#include <span>

#include "weft/linear/data/sparse_rows.h"

namespace weft::linear {

// x·w. Four sums, because one sum would wait for each addition.
inline double dot(std::span<const Entry> x, const double* w) {
  double a = 0, b = 0, c = 0, d = 0;
  const Entry *at = x.data(), *const end = at + x.size();
  for (; end - at >= 4; at += 4) {
    a += at[0].value * w[at[0].column];
    b += at[1].value * w[at[1].column];
    c += at[2].value * w[at[2].column];
    d += at[3].value * w[at[3].column];
  }
  for (; at != end; ++at) a += at->value * w[at->column];
  return (a + b) + (c + d);
}

// w += factor x.
inline void add(double factor, std::span<const Entry> x, double* w) {
  for (const Entry& entry : x) w[entry.column] += factor * entry.value;
}

// |x|².
inline double squares(std::span<const Entry> x) {
  double sum = 0;
  for (const Entry& entry : x) sum += static_cast<double>(entry.value) * entry.value;
  return sum;
}

// Loads a row into the cache ahead of its use. It must be inlined: GCC takes a function that only
// prefetches for one without effect, and removes calls of it.
[[gnu::always_inline]] inline void prefetch(std::span<const Entry> x) {
  constexpr std::size_t kLine = 64 / sizeof(Entry), kMost = 32 * kLine;
  const std::size_t size = x.size() < kMost ? x.size() : kMost;
  for (std::size_t i = 0; i < size; i += kLine) __builtin_prefetch(x.data() + i);
  if (size > 0) __builtin_prefetch(x.data() + size - 1);
}

// The proximal step of |·|₁: moves v towards 0 by `by`.
inline double soft(double v, double by) { return v > by ? v - by : v < -by ? v + by : 0; }

}  // namespace weft::linear
