// Ranks that are forked processes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace {

// Whether two threads of libtorch compute at once.
bool computes_in_parallel() {
  at::set_num_threads(2);
  std::atomic<int> parts = 0;
  at::parallel_for(0, 2, 1, [&](std::int64_t, std::int64_t) { ++parts; });
  return parts == 2;
}

TEST(ForkedRanks, ComputeInParallelAfterTheirParentHas) {
  const int threads = at::get_num_threads();
  ASSERT_TRUE(computes_in_parallel());
  const auto codes = fork_ranks(
      2, "tcp", [](const Group&) { return computes_in_parallel() ? 0 : 1; }, {},
      std::chrono::seconds(20));
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace weft::comm
