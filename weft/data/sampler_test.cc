#include "weft/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::data {
namespace {

// The global batches of an epoch, each joined from the shares of all ranks.
std::vector<std::vector<std::int64_t>> epoch_of(SamplerOptions options, SamplerState from = {}) {
  std::vector<std::vector<std::int64_t>> batches;
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    Sampler sampler(options);
    sampler.set_state(from);
    std::size_t b = 0;
    for (; auto share = sampler.next(); ++b) {
      if (batches.size() <= b) batches.emplace_back();
      batches[b].insert(batches[b].end(), share->indices.begin(), share->indices.end());
      EXPECT_LE(share->indices.size(), static_cast<std::size_t>(share->global_size));
    }
    EXPECT_EQ(b, batches.size());
    EXPECT_EQ(sampler.state(), (SamplerState{from.epoch + 1, 0}));
  }
  return batches;
}

TEST(Sampler, GivesEverySampleOnceAnEpochInTheSameGlobalBatchesForAnyWorld) {
  for (const std::int64_t size : {1, 7, 64, 101}) {
    for (const std::int64_t batch : {1, 5, 16, 200}) {
      const auto alone = epoch_of({.size = size, .batch = batch, .seed = 3});
      std::vector<std::int64_t> all;
      for (const auto& b : alone) all.insert(all.end(), b.begin(), b.end());
      std::sort(all.begin(), all.end());
      std::vector<std::int64_t> want(size);
      std::iota(want.begin(), want.end(), 0);
      EXPECT_EQ(all, want);
      for (int world = 2; world <= 9; ++world) {
        EXPECT_EQ(epoch_of({.size = size, .batch = batch, .seed = 3, .world = world}), alone)
            << size << " " << batch << " " << world;
      }
    }
  }
}

TEST(Sampler, TakesABatchOfAnySizeAsTheWholeDataSet) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const Order order : {Order::kShuffled, Order::kSequential}) {
    const auto batches = epoch_of({.size = 7, .batch = kMost, .order = order});
    ASSERT_EQ(batches.size(), 1U);
    EXPECT_EQ(batches[0].size(), 7U);
    EXPECT_EQ(Sampler({.size = 7, .batch = kMost, .order = order}).batches(), 1);
  }
  Sampler last({.size = 7, .batch = kMost, .order = Order::kSequential, .rank = 2, .world = 3});
  EXPECT_EQ(last.batches(), 0);
  EXPECT_FALSE(last.next());
}

TEST(Sampler, SplitsABatchIntoSharesThatDifferByAtMostOne) {
  for (std::int64_t count : {0, 1, 3, 64, 1000003}) {
    for (int world : {1, 2, 3, 7, 128}) {
      std::int64_t end = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Range range = share_of(count, rank, world);
        EXPECT_EQ(range.begin, end);
        EXPECT_GE(range.size(), count / world);
        EXPECT_LE(range.size(), (count + world - 1) / world);
        end = range.end;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(Sampler, SharesOfASmallerWorldAreUnionsOfSharesOfALargerOne) {
  for (std::int64_t count = 0; count < 40; ++count) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(share_of(count, rank, 2).begin, share_of(count, 2 * rank, 4).begin);
      EXPECT_EQ(share_of(count, rank, 2).end, share_of(count, 2 * rank + 1, 4).end);
    }
  }
}

TEST(Sampler, GivesSomeRanksNoSamplesWhenABatchIsSmallerThanTheWorld) {
  Sampler sampler({.size = 2, .batch = 8, .rank = 0, .world = 4});
  const auto share = sampler.next();
  ASSERT_TRUE(share);
  EXPECT_TRUE(share->indices.empty());
  EXPECT_EQ(share->global_size, 2);
  EXPECT_FALSE(sampler.next());
}

TEST(Sampler, GivesNoRankFewerSamplesThanTheSmallestShare) {
  const auto sizes = [](std::int64_t size, std::vector<double> weights = {}) {
    std::vector<std::size_t> all;
    for (int rank = 0; rank < 3; ++rank) {
      Sampler sampler({.size = size, .batch = 64, .least = 2, .rank = rank, .world = 3});
      sampler.set_weights(weights);
      all.push_back(sampler.next()->indices.size());
    }
    return all;
  };
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(sizes(7), (Sizes{2, 2, 3}));
  EXPECT_EQ(sizes(5), (Sizes{2, 3, 0}));
  EXPECT_EQ(sizes(3), (Sizes{3, 0, 0}));
  EXPECT_EQ(sizes(1), (Sizes{1, 0, 0}));
  EXPECT_EQ(sizes(20, {1, 4, 5}), (Sizes{2, 8, 10}));
  EXPECT_EQ(sizes(10, {1, 4, 5}), (Sizes{3, 3, 4}));  // by weights the first rank would get 1
}

TEST(Sampler, PlacesAShareWithoutSamplesAtTheBeginOfItsBatch) {
  Sampler sampler({.size = 8, .batch = 4, .least = 2, .rank = 3, .world = 4});
  for (const std::int64_t first : {0, 4}) {
    const auto share = sampler.next();
    ASSERT_TRUE(share);
    EXPECT_TRUE(share->indices.empty());
    EXPECT_EQ(share->first, first);
  }
}

TEST(Sampler, TellsARankHowManySamplesItsGroupHas) {
  const auto groups = [](std::int64_t size, std::vector<double> weights = {}) {
    std::vector<std::int64_t> all;
    for (int rank = 0; rank < 4; ++rank) {
      Sampler sampler(
          {.size = size, .batch = 64, .least = 2, .rank = rank, .world = 4, .group = 2});
      sampler.set_weights(weights);
      all.push_back(sampler.next()->group_size);
    }
    return all;
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(groups(9), (Sizes{4, 4, 5, 5}));
  EXPECT_EQ(groups(7), (Sizes{4, 4, 3, 3}));
  EXPECT_EQ(groups(5), (Sizes{5, 5, 0, 0}));
  EXPECT_EQ(groups(20, {1, 1, 0, 0}), (Sizes{20, 20, 0, 0}));
  EXPECT_THROW(Sampler({.size = 1, .world = 4, .group = 3}), Error);
}

TEST(Sampler, ShufflesEachEpochDifferentlyAndRepeatsWithTheSeed) {
  const auto epoch = [](std::uint64_t seed, std::int64_t e) {
    return epoch_of({.size = 100, .batch = 10, .seed = seed}, {e, 0});
  };
  EXPECT_EQ(epoch(5, 2), epoch(5, 2));
  EXPECT_NE(epoch(5, 2), epoch(5, 3));
  EXPECT_NE(epoch(5, 2), epoch(6, 2));
}

TEST(Sampler, ResumesAtAPositionWithAnotherWorldAndBatch) {
  const auto order = permutation(50, 9, 4);
  const auto rest =
      epoch_of({.size = 50, .batch = 8, .seed = 9, .world = 3}, {.epoch = 4, .position = 21});
  std::vector<std::int64_t> all;
  for (const auto& b : rest) all.insert(all.end(), b.begin(), b.end());
  EXPECT_EQ(all, std::vector<std::int64_t>(order.begin() + 21, order.end()));
}

TEST(Sampler, SplitsEvaluationIntoTheSameBlocksForAnyWorld) {
  for (const std::int64_t size : {1, 10, 64, 101}) {
    std::set<std::pair<std::int64_t, std::size_t>> alone;
    for (int world = 1; world <= 5; ++world) {
      std::set<std::pair<std::int64_t, std::size_t>> blocks;
      std::size_t samples = 0;
      for (int rank = 0; rank < world; ++rank) {
        Sampler sampler(
            {.size = size, .batch = 8, .order = Order::kSequential, .rank = rank, .world = world});
        std::int64_t mine = 0;
        while (auto share = sampler.next()) {
          ++mine;
          samples += share->indices.size();
          EXPECT_EQ(share->indices.front() / 8 % world, rank);
          EXPECT_TRUE(blocks.insert({share->indices.front(), share->indices.size()}).second);
        }
        EXPECT_EQ(mine, sampler.batches());
      }
      EXPECT_EQ(samples, static_cast<std::size_t>(size));
      if (world == 1) alone = blocks;
      EXPECT_EQ(blocks, alone);
    }
  }
}

TEST(Sampler, RefusesInvalidOptions) {
  EXPECT_THROW(Sampler({.size = 0}), Error);
  EXPECT_THROW(Sampler({.size = 4, .batch = 0}), Error);
  EXPECT_THROW(Sampler({.size = 4, .rank = 2, .world = 2}), Error);
  Sampler sampler({.size = 4});
  EXPECT_THROW(sampler.set_state({.epoch = 0, .position = 5}), Error);
  EXPECT_EQ(sampler.state(), SamplerState{});
}

TEST(Sampler, ReturnsTheDrawnPartsOfTheSameGlobalBatches) {
  const SamplerOptions plain{.size = 101, .batch = 16, .seed = 3, .world = 3};
  const auto wanted = epoch_of(plain);
  std::vector<SamplerOptions::Draw> draws;
  for (int batch = 6; batch >= 2; --batch) {
    for (int rank = 0; rank < 3; ++rank) draws.push_back({batch - 2, rank});
  }
  SamplerOptions drawing = plain;
  std::size_t next = 0;
  drawing.draw = [&]() -> std::optional<SamplerOptions::Draw> {
    return next < draws.size() ? std::optional(draws[next++]) : std::nullopt;
  };
  Sampler sampler(drawing);
  sampler.set_state({0, 32});  // draws count from the third batch on
  for (int batch = 6; batch >= 2; --batch) {
    std::vector<std::int64_t> joined;
    for (int rank = 0; rank < 3; ++rank) {
      const auto share = sampler.next();
      ASSERT_TRUE(share.has_value());
      EXPECT_EQ(share->first / 16, batch);
      joined.insert(joined.end(), share->indices.begin(), share->indices.end());
    }
    EXPECT_EQ(joined, wanted[static_cast<std::size_t>(batch)]);
  }
  EXPECT_EQ(sampler.next(), std::nullopt);
  EXPECT_EQ(sampler.state(), (SamplerState{0, 32}));
  draws.push_back({5, 0});
  EXPECT_THROW(sampler.next(), Error);  // beyond the epoch
  drawing.order = Order::kSequential;
  EXPECT_THROW(Sampler{drawing}, Error);
}

}  // namespace
}  // namespace weft::data
