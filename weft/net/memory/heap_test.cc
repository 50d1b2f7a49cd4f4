#include "weft/net/memory/heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace weft::net {
namespace heap_test {

TEST(Heap, RoundsToAtMostAnEighthAboveOneKilobyte) {
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 34); bytes += bytes / 7 + 1) {
    const std::size_t rounded = Heap::rounded(bytes);
    ASSERT_GE(rounded, bytes);
    ASSERT_LE(rounded, bytes <= 1024 ? bytes + 63 : bytes + bytes / 8 + 64) << bytes;
  }
}

TEST(Heap, AllocatesAlignedDisjointBlocksAndReusesThem) {
  Heap heap(std::size_t{64} << 20);
  std::mt19937 random(1);
  std::vector<std::pair<unsigned char*, std::size_t>> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() > 50 || (!live.empty() && random() % 2 == 0)) {
      const std::size_t at = random() % live.size();
      for (std::size_t k = 0; k < live[at].second; k += 61)
        ASSERT_EQ(live[at].first[k], static_cast<unsigned char>(live[at].second));
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

TEST(Heap, UsesHugePagesIfTheSystemHasThem) {
  Heap heap(std::size_t{64} << 20);
  void* block = heap.allocate(1 << 20);
  const auto stats = heap.stats();
  EXPECT_EQ(*static_cast<char*>(block), 0);
  // All memory taken so far, or zero on a system without huge pages.
  EXPECT_TRUE(stats.huge_bytes == stats.footprint_bytes || stats.huge_bytes == 0)
      << stats.huge_bytes;
  RecordProperty("huge_bytes", std::to_string(stats.huge_bytes));
  heap.deallocate(block);
}

TEST(Heap, RenewKeepsItsContentsAndDetachesOldMappings) {
  Heap heap(std::size_t{64} << 20);
  auto* block = static_cast<unsigned char*>(heap.allocate(3 << 20));
  auto* small = static_cast<unsigned char*>(heap.allocate(100));
  std::memset(block, 7, 3 << 20);
  std::memset(small, 8, 100);
  // Simulates a peer: a mapping of the memory as it was passed on.
  auto* peer = static_cast<unsigned char*>(
      mmap(nullptr, heap.size(), PROT_READ | PROT_WRITE, MAP_SHARED, heap.fd(), 0));
  ASSERT_NE(peer, MAP_FAILED);
  peer[heap.offset(block)] = 9;
  ASSERT_EQ(block[0], 9);

  heap.renew();
  EXPECT_EQ(block[0], 9);
  EXPECT_EQ(block[(3 << 20) - 1], 7);
  EXPECT_EQ(small[99], 8);
  std::memset(peer + heap.offset(block), 1, 3 << 20);  // a late write of the peer
  EXPECT_EQ(block[0], 9);
  block[1] = 2;
  EXPECT_EQ(peer[heap.offset(block) + 1], 1);
  auto* anew = static_cast<unsigned char*>(
      mmap(nullptr, heap.size(), PROT_READ | PROT_WRITE, MAP_SHARED, heap.fd(), 0));
  ASSERT_NE(anew, MAP_FAILED);
  EXPECT_EQ(anew[heap.offset(block) + 1], 2);
  munmap(peer, heap.size());
  munmap(anew, heap.size());
  heap.deallocate(block);
  void* more = heap.allocate(20 << 20);
  EXPECT_NE(more, nullptr);
  heap.deallocate(more);
  heap.deallocate(small);
}

TEST(Heap, RenewLosesNoWriteOfAnotherThread) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "write protection (mprotect) excludes the writer, which the thread sanitizer "
                  "does not treat as synchronization";
#endif
  Heap heap(std::size_t{64} << 20);
  constexpr std::size_t kCount = (16 << 20) / sizeof(std::uint32_t);
  auto* block = static_cast<std::uint32_t*>(heap.allocate(16 << 20));
  std::atomic<bool> stop{false};
  std::uint32_t rounds = 0;
  std::thread writer([&] {
    while (!stop.load()) {
      ++rounds;
      for (std::size_t i = 0; i < kCount; ++i) block[i] = rounds + static_cast<std::uint32_t>(i);
    }
  });
  for (int i = 0; i < 20; ++i) heap.renew();
  stop.store(true);
  writer.join();
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(block[i], rounds + static_cast<std::uint32_t>(i));
  heap.deallocate(block);
}

TEST(Heap, ReturnsNullBeyondItsLimitAndMergesFreedBlocks) {
  Heap heap(std::size_t{32} << 20);
  std::vector<void*> blocks;
  while (void* block = heap.allocate(1 << 20)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 32u);
  EXPECT_EQ(heap.stats().refused, 1u);
  for (void* block : blocks) heap.deallocate(block);
  void* whole = heap.allocate(std::size_t{32} << 20);
  EXPECT_NE(whole, nullptr);
  heap.deallocate(whole);
  EXPECT_EQ(heap.stats().footprint_bytes, std::size_t{32} << 20);
  for (const std::size_t bytes : {(std::size_t{32} << 20) + 1, SIZE_MAX})
    EXPECT_EQ(heap.allocate(bytes), nullptr) << bytes;
}

TEST(Heap, GrowsOnlyByWhatIsMissingAtItsEnd) {
  Heap heap(256 << 20);
  constexpr std::size_t kMiB = 1 << 20;
  void* const first = heap.allocate(kMiB);
  void* const second = heap.allocate(3 * kMiB);
  EXPECT_EQ(heap.stats().footprint_bytes, 4 * kMiB);
  EXPECT_EQ(static_cast<char*>(second), static_cast<char*>(first) + kMiB);
  for (void* block : {first, second}) heap.deallocate(block);
  void* const third = heap.allocate(6 * kMiB);
  EXPECT_EQ(third, first);
  EXPECT_EQ(heap.stats().footprint_bytes, 6 * kMiB);
  EXPECT_EQ(heap.stats().reused, 0u);
  heap.deallocate(third);
  heap.deallocate(heap.allocate(5 * kMiB));
  EXPECT_EQ(heap.stats().reused, 1u);
}

// As in steps of a convolutional model: from layer to layer, activations become smaller and weights
// larger. One activation of each layer is kept for backward.
TEST(Heap, BlocksOfManySizesLeaveSmallGaps) {
  constexpr int kLayers = 40;
  Heap heap(std::size_t{1} << 30);
  std::mt19937 random(1);
  const auto blocks_of = [&](int layer) {
    const std::size_t activation = std::size_t{4'000'000} >> layer / 10;
    const std::size_t weight = std::size_t{150'000} << 2 * (layer / 10);
    return std::vector<void*>{heap.allocate(activation), heap.allocate(weight),
                              heap.allocate(activation), heap.allocate(weight / 3)};
  };
  const auto deallocate = [&](std::vector<void*> blocks) {
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (void* block : blocks) heap.deallocate(block);
  };
  for (int step = 0; step < 5; ++step) {
    std::vector<void*> kept;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<void*> own = blocks_of(layer);
      kept.push_back(own.front());
      own.erase(own.begin());
      deallocate(own);
    }
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      std::vector<void*> own = blocks_of(layer);
      own.push_back(kept.back());
      kept.pop_back();
      deallocate(own);
    }
  }
  const HeapStats stats = heap.stats();
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_LT(static_cast<double>(stats.footprint_bytes),
            1.1 * static_cast<double>(stats.peak_bytes));
}

TEST(Heap, GivesFreeMemoryBackAndUsesItsPlaceAgain) {
  constexpr std::size_t kMiB = 1 << 20;
  Heap heap(64 * kMiB);
  const auto held = [&] {
    struct stat status {};
    fstat(heap.fd(), &status);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  auto* const first = static_cast<char*>(heap.allocate(8 * kMiB));
  auto* const second = static_cast<char*>(heap.allocate(8 * kMiB));
  auto* const third = static_cast<char*>(heap.allocate(8 * kMiB));
  std::fill_n(first, 8 * kMiB, 'a');
  std::fill_n(second, 8 * kMiB, 'b');
  std::fill_n(third, 8 * kMiB, 'c');
  const std::size_t before = held();
  heap.deallocate(second);
  heap.trim();
  EXPECT_GE(heap.stats().end_bytes, heap.offset(third) + 8 * kMiB);
  EXPECT_EQ(held(), before - 8 * kMiB);
  EXPECT_LE(heap.stats().footprint_bytes, before - 8 * kMiB);
  heap.renew();
  EXPECT_LE(held(), before - 8 * kMiB);
  EXPECT_EQ(first[8 * kMiB - 1], 'a');
  EXPECT_EQ(third[0], 'c');
  auto* const again = static_cast<char*>(heap.allocate(8 * kMiB));
  EXPECT_EQ(again, second) << "not at the end of the region";
  EXPECT_EQ(std::count(again, again + 8 * kMiB, 0), 8 * kMiB);
  std::fill_n(again, 8 * kMiB, 'd');
  for (char* block : {first, third, again}) heap.deallocate(block);
  heap.trim();
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(heap.stats().footprint_bytes, 0u);
  EXPECT_EQ(heap.stats().end_bytes, 0u);
  std::vector<void*> blocks;
  while (void* block = heap.allocate(kMiB)) blocks.push_back(block);
  EXPECT_GE(blocks.size(), 60u);
  for (void* block : blocks) heap.deallocate(block);
}

TEST(Heap, ThreadsMayFreeEachOthersBlocks) {
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

// The thread's cache is constructed later than this object, so it is destroyed first.
struct Late {
  Heap* heap = nullptr;
  void* block = nullptr;
  ~Late() {
    if (heap == nullptr) return;
    void* const other = heap->allocate(kBytes);
    heap->deallocate(block);
    heap->deallocate(other);
    if (other == nullptr) std::abort();
  }
  static constexpr std::size_t kBytes = 32 << 10;
};

TEST(Heap, BlocksAreFreedAndAllocatedAfterTheCacheOfTheirThread) {
  Heap heap(std::size_t{64} << 20);
  void* late_block = nullptr;
  std::thread([&] {
    thread_local Late late;
    late.heap = &heap;
    late.block = late_block = heap.allocate(Late::kBytes);
  }).join();
  EXPECT_EQ(heap.stats().live_bytes, 0u);
  std::vector<void*> blocks(8);  // of the first span
  for (auto& block : blocks) block = heap.allocate(Late::kBytes);
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), late_block), 1);
  for (void* block : blocks) heap.deallocate(block);
}

// In a process of its own: ranks that other tests fork make their own heap.
TEST(Heap, AForkedChildDoesNotUseItsParentsHeap) {
  const auto succeeds = [] {
    Heap* heap = process_heap();
    if (heap == nullptr) _exit(1);
    void* block = heap->allocate(4096);
    const pid_t child = fork();
    if (child == 0) {
      const bool none = heap->allocate(4096) == nullptr;
      heap->deallocate(block);
      _exit(none ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    _exit(status == 0 && heap->allocate(4096) != block ? 0 : 1);
  };
  EXPECT_EXIT(succeeds(), testing::ExitedWithCode(0), "");
}

TEST(Heap, AForkedChildInheritsNoLockThatAnotherThreadHolds) {
  const auto succeeds = [] {
    Heap* heap = process_heap();
    if (heap == nullptr) _exit(1);
    std::atomic<bool> ends{false};
    std::thread busy([&] {
      while (!ends) heap->deallocate(heap->allocate(1 << 20));
    });
    int failed = 0;
    for (int i = 0; i < 20 && failed == 0; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(5);
        static_cast<void>(heap->stats());
        _exit(0);
      }
      waitpid(child, &failed, 0);
    }
    ends = true;
    busy.join();
    _exit(failed == 0 ? 0 : 1);
  };
  EXPECT_EXIT(succeeds(), testing::ExitedWithCode(0), "");
}

}  // namespace heap_test
}  // namespace weft::net
