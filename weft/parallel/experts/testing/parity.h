// Test helpers: compare a layer of experts over ranks with one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/experts/mixture.h"

namespace weft::parallel::internal {

using comm::expect_close;
using comm::wave;

constexpr std::uint64_t kSeed = 11;

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
