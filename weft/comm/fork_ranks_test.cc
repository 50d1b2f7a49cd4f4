// Ranks that are forked processes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <vector>

#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace {

std::ptrdiff_t number_of_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Whether libtorch uses two threads of OpenMP.
bool computes_in_parallel() {
  at::set_num_threads(2);
  at::ones({1 << 20}).add_(1);
  return number_of_threads() >= 2;
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
