// Test helpers: compare a layer of experts over ranks with one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "weft/comm/replicate.h"
#include "weft/parallel/experts/mixture.h"

namespace weft::parallel::internal {

constexpr std::uint64_t kSeed = 11;

inline at::Tensor wave(at::IntArrayRef sizes, double phase, at::ScalarType type = at::kDouble) {
  return (torch::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + phase)
      .sin()
      .view(sizes)
      .to(type);
}

// Largest difference over the largest value: at most 1e-10 in float64, 1e-5 in float32 (sums in
// another order).
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& what) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const double most = (expected.scalar_type() == at::kDouble ? 1e-10 : 1e-5) *
                      std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((actual - expected).abs().max().item<double>(), most) << what;
}

// Joins a parameter of all experts from the ranks along ep. Collective.
inline at::Tensor whole_of_experts(const at::Tensor& mine, const ExpertParallel& ep) {
  if (ep.size() == 1) return mine;
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes[0] *= ep.size();
  at::Tensor all = at::empty(sizes, mine.options().requires_grad(false));
  ep.group().all_gather(all, mine.detach().contiguous());
  return all;
}

}  // namespace weft::parallel::internal
