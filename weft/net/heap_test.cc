#include "weft/net/heap.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace weft::net {
namespace {

TEST(Heap, RoundsToAtMostAnEighthAboveOneKilobyte) {
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 34); bytes += bytes / 7 + 1) {
    const std::size_t rounded = Heap::rounded(bytes);
    ASSERT_GE(rounded, bytes);
    ASSERT_LE(rounded, bytes <= 1024 ? bytes + 63 : bytes + bytes / 8 + 64) << bytes;
  }
}

TEST(Heap, HandsOutAlignedDisjointBlocksAndReusesThemWarm) {
  Heap heap(std::size_t{64} << 20);
  std::mt19937 random(1);
  std::vector<std::pair<unsigned char*, std::size_t>> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() > 50 || (!live.empty() && random() % 2 == 0)) {
      const std::size_t at = random() % live.size();
      for (std::size_t k = 0; k < live[at].second; k += 61) ASSERT_EQ(live[at].first[k], static_cast<unsigned char>(live[at].second));
      heap.deallocate(live[at].first);
      live[at] = live.back();
      live.pop_back();
    } else {
      const std::size_t bytes = std::size_t{1} << (random() % 19);
      auto* block = static_cast<unsigned char*>(heap.allocate(bytes));
      ASSERT_NE(block, nullptr);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
      ASSERT_TRUE(heap.contains(block) && heap.contains(block + bytes - 1));
      std::memset(block, static_cast<unsigned char>(bytes), bytes);
      live.emplace_back(block, bytes);
    }
  }
  const auto stats = heap.stats();
  EXPECT_GT(stats.reused, stats.allocations / 2);
}

TEST(Heap, LiesOnHugePagesWhereTheSystemHasThem) {
  Heap heap(std::size_t{64} << 20);
  void* block = heap.allocate(1 << 20);
  const auto stats = heap.stats();
  EXPECT_EQ(*static_cast<char*>(block), 0);
  // All of what has been taken, or, on a system without them, nothing.
  EXPECT_TRUE(stats.huge_bytes == stats.footprint_bytes || stats.huge_bytes == 0) << stats.huge_bytes;
  RecordProperty("huge_bytes", std::to_string(stats.huge_bytes));
  heap.deallocate(block);
}

TEST(Heap, RefusesBeyondItsLimitAndServesAgainAfterMergingOtherClasses) {
  Heap heap(std::size_t{32} << 20);
  std::vector<void*> blocks;
  while (void* block = heap.allocate(1 << 20)) blocks.push_back(block);
  EXPECT_GE(blocks.size(), 28u);
  EXPECT_EQ(heap.stats().refused, 1u);
  for (void* block : blocks) heap.deallocate(block);
  void* whole = heap.allocate(std::size_t{24} << 20);  // only possible once the cached megabytes are merged
  EXPECT_NE(whole, nullptr);
  heap.deallocate(whole);
  EXPECT_LE(heap.stats().footprint_bytes, std::size_t{32} << 20);
}

TEST(Heap, ThreadsThatFreeEachOthersBlocksLoseNone) {
  Heap heap(std::size_t{64} << 20);
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> blocks(400);
    std::thread([&] {
      for (auto& block : blocks) block = heap.allocate(2048);
    }).join();
    std::thread([&] {
      for (auto& block : blocks) heap.deallocate(block);
    }).join();
  }
  EXPECT_EQ(heap.stats().live_bytes, 0u);
  EXPECT_LT(heap.stats().footprint_bytes, std::size_t{16} << 20);
}

TEST(Heap, AForkedChildLeavesItsParentsHeapAlone) {
  Heap* heap = process_heap();
  ASSERT_NE(heap, nullptr) << process_heap_error();
  void* block = heap->allocate(4096);
  const pid_t child = fork();
  if (child == 0) {
    const bool none = heap->allocate(4096) == nullptr;
    heap->deallocate(block);
    _exit(none ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(heap->allocate(4096), block);
  heap->deallocate(block);
}

}  // namespace
}  // namespace weft::net
