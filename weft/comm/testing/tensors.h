// Tensors for tests: values that differ at each place, and comparisons with a bound.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace weft::comm {

// sin(0.7 i + phase) at place i.
inline at::Tensor wave(at::IntArrayRef sizes, double phase, at::ScalarType type = at::kDouble) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + phase)
      .sin()
      .view(sizes)
      .to(type);
}

// The difference that sums in another order may make, relative to the values.
inline double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-10 : type == at::kFloat ? 1e-5 : 3e-2;
}

// Expects the same sizes, and values that differ by at most `most`, relative to the value and to
// the largest value up to 1.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& what, double most) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const at::Tensor a = actual.to(at::kDouble), b = expected.to(at::kDouble);
  const double largest = b.abs().max().item<double>();
  EXPECT_TRUE(at::allclose(a, b, most, most * std::clamp(largest, 1e-3, 1.0)))
      << what << ": differs by " << (a - b).abs().max().item<double>() << " of " << largest;
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& what) {
  expect_close(actual, expected, what, tolerance(actual.scalar_type()));
}

}  // namespace weft::comm
