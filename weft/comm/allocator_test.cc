#include "weft/comm/allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/observe/memory.h"

namespace weft::comm {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(ReleaseMemory, GivesThatOfFreedTensorsBack) {
  if (!install_allocator()) GTEST_SKIP() << "no shared memory";
  at::Tensor stays = at::ones({1000});
  at::Tensor goes = at::ones({16 << 20});  // 64 MiB
  const std::uint64_t held = observe::process_memory();
  goes.reset();
  release_memory();
  EXPECT_LT(observe::process_memory(), held - 60 * kMiB);
  goes = at::ones({16 << 20});
  EXPECT_EQ(goes.sum().item<float>(), 16 << 20);
  EXPECT_EQ(stays.sum().item<float>(), 1000);
}

}  // namespace
}  // namespace weft::comm
