#include "weft/strategy/shared_batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "weft/comm/replicate.h"

namespace weft::strategy {
namespace shared_batches_test {

TEST(SharedBatches, GivesOutEachNumberOnceAndFewerToASlowWorker) {
  const int workers = 4, count = 60;
  std::vector<std::atomic<int>> given(count);
  std::vector<int> taken(workers);
  comm::replicate(workers, [&](const Group& group) {
    SharedBatches batches(group, group.rank(), workers, true);
    for (int epoch = 0; epoch < 2; ++epoch) {
      batches.begin(count);
      while (const auto number = batches.take()) {
        ++given[static_cast<std::size_t>(*number)];
        ++taken[static_cast<std::size_t>(group.rank())];
        std::this_thread::sleep_for(std::chrono::milliseconds(group.rank() == 3 ? 32 : 4));
      }
      EXPECT_EQ(batches.take(), std::nullopt);
      EXPECT_EQ(batches.end(), count);
    }
  });
  for (const auto& times : given) EXPECT_EQ(times.load(), 2);
  EXPECT_LT(taken[3] * 3, 0.6 * (taken[0] + taken[1] + taken[2]));
  EXPECT_EQ(std::accumulate(taken.begin(), taken.end(), 0), 2 * count);
}

TEST(SharedBatches, EndsAfterAWholeBatchWhenOneWorkerClosesIt) {
  comm::replicate(3, [](const Group& group) {
    SharedBatches batches(group, group.rank(), 3, true);
    batches.begin(30);
    if (group.rank() == 1) {
      for (int i = 0; i < 4; ++i) batches.take();  // one of the second batch
      batches.close();
      EXPECT_EQ(batches.end(), 6);
      batches.close();
      EXPECT_EQ(batches.end(), 6);
    }
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_EQ(batches.take(), 4);
      EXPECT_EQ(batches.take(), 5);
      EXPECT_EQ(batches.take(), std::nullopt);
    }
    batches.begin(2);
    EXPECT_EQ(batches.end(), 2);
  });
}

TEST(SharedBatches, GivesAllRanksOfAWorkerTheSameNumbers) {
  const int count = 100;
  std::vector<std::vector<std::int64_t>> taken(4);
  comm::replicate(4, [&](const Group& group) {
    SharedBatches batches(group, group.rank() / 2, 2, group.rank() % 2 == 0);
    const Group worker = group.subgroup({group.rank() / 2 * 2, group.rank() / 2 * 2 + 1}, "worker");
    for (int epoch = 0; epoch < 2; ++epoch) {
      batches.begin(count);
      while (const auto number = batches.take()) {
        taken[static_cast<std::size_t>(group.rank())].push_back(*number);
        worker.barrier();
      }
    }
  });
  EXPECT_EQ(taken[0], taken[1]);
  EXPECT_EQ(taken[2], taken[3]);
  EXPECT_EQ(taken[0].size() + taken[2].size(), 2U * count);
}

TEST(SharedBatches, AddsUpWhatEachRankHasDone) {
  comm::replicate(3, [](const Group& group) {
    SharedBatches batches(group, group.rank(), 3, true);
    for (int i = 0; i < 10; ++i)
      batches.add({.batches = 1, .loss = 0.5 * group.rank(), .memory_bytes = 7});
    group.barrier();
    const auto done = batches.done();
    ASSERT_EQ(done.size(), 3U);
    EXPECT_EQ(done[2].batches, 10);
    EXPECT_EQ(done[2].loss, 10);
    EXPECT_EQ(done[1].loss, 5);
    EXPECT_EQ(done[1].memory_bytes, 7);
    auto sum = done[0];
    sum += done[1];
    sum -= done[2];
    EXPECT_EQ(sum.batches, 10);
    EXPECT_EQ(sum.loss, -5);
  });
}

TEST(SharedBatches, CountsLossesInARowThatAreNotFinite) {
  comm::replicate(2, [](const Group& group) {
    SharedBatches batches(group, group.rank(), 2, true);
    if (group.rank() == 1) {
      EXPECT_EQ(batches.add_finite(false, 8), 1);
      EXPECT_EQ(batches.add_finite(false, 9), 2);
    }
    group.barrier();
    const auto found = batches.not_finite();
    EXPECT_EQ(found.batches, 2);
    EXPECT_EQ(found.first_step, 8);
    EXPECT_EQ(found.rank, 1);
    group.barrier();
    EXPECT_EQ(batches.add_finite(true, 10), 0);
    EXPECT_EQ(batches.not_finite().batches, 0);
  });
}

}  // namespace shared_batches_test
}  // namespace weft::strategy
