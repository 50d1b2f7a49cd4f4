#include "weft/data/balance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/data/sampler.h"

namespace weft::data {
namespace {

std::vector<std::int64_t> shares_of(std::int64_t count, const std::vector<double>& weights) {
  std::vector<std::int64_t> shares;
  for (int rank = 0; rank < static_cast<int>(weights.size()); ++rank)
    shares.push_back(share_of(count, rank, weights).size());
  return shares;
}

// Returns the seconds of a step on each rank, from the seconds that the rank takes for one sample.
std::vector<double> seconds_of(const std::vector<std::int64_t>& shares,
                               const std::vector<double>& per_sample) {
  std::vector<double> seconds;
  for (std::size_t rank = 0; rank < shares.size(); ++rank)
    seconds.push_back(static_cast<double>(shares[rank]) * per_sample[rank]);
  return seconds;
}

TEST(WeightedShares, AreWithinOneOfTheWeightsAndCoverAll) {
  for (const std::int64_t count : {0, 1, 7, 256, 1001}) {
    const std::vector<double> weights{5, 0, 1, 2.5};
    std::int64_t at = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Range range = share_of(count, rank, weights);
      EXPECT_EQ(range.begin, at);
      at = range.end;
      EXPECT_NEAR(static_cast<double>(range.size()),
                  static_cast<double>(count) * weights[static_cast<std::size_t>(rank)] / 8.5, 1.0);
    }
    EXPECT_EQ(at, count);
  }
}

TEST(Balance, MakesRanksOfUnequalSpeedFinishTogether) {
  // A GPU beside two CPUs: shares of 2/3, 2/9, 1/9.
  const std::vector<double> per_sample{1e-3, 3e-3, 6e-3};
  Balance balance(3);
  EXPECT_EQ(shares_of(900, balance.weights()), (std::vector<std::int64_t>{300, 300, 300}));
  const double even = 300 * per_sample[2];
  auto shares = shares_of(900, balance.weights());
  balance.measure(shares, seconds_of(shares, per_sample));
  shares = shares_of(900, balance.weights());
  EXPECT_EQ(shares, (std::vector<std::int64_t>{600, 200, 100}));
  const auto seconds = seconds_of(shares, per_sample);
  EXPECT_LE(*std::max_element(seconds.begin(), seconds.end()), even / 2.9);
}

TEST(Balance, FollowsARankThatSlowsDownAndSmoothsOneSlowStep) {
  Balance balance(2);
  std::vector<double> per_sample{1e-3, 1e-3};
  const auto step = [&] {
    const auto shares = shares_of(100, balance.weights());
    balance.measure(shares, seconds_of(shares, per_sample));
    return shares_of(100, balance.weights());
  };
  step();
  per_sample[1] = 4e-3;  // for one step
  EXPECT_GE(step()[1], 35);
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80, 20}));
}

TEST(Balance, GivesEachRankSamplesSoThatItsRecoveryIsMeasured) {
  Balance balance(2, {.smoothing = 1, .smallest_share = 0.1});
  balance.measure({50, 50}, {1e-3, 1e3});
  EXPECT_DOUBLE_EQ(balance.weights()[1], 0.05);
  EXPECT_DOUBLE_EQ(balance.weights()[0], 0.95);
  balance.measure({95, 5}, {95e-3, 5e-3});
  EXPECT_DOUBLE_EQ(balance.weights()[1], 0.5);
  balance.measure({100, 0}, {100e-3, 0});  // no samples: the speed is kept
  EXPECT_DOUBLE_EQ(balance.weights()[1], 0.5);
  EXPECT_THROW(balance.measure({1}, {1}), Error);
  EXPECT_THROW(Balance(0), Error);
}

TEST(Balance, LeavesNoRankLessThanTheSmallestShare) {
  Balance balance(4, {.smoothing = 1, .smallest_share = 0.5});
  balance.measure({100, 100, 100, 100}, {1, 4, 20, 1e6});
  const std::vector<double> weights = balance.weights();
  EXPECT_DOUBLE_EQ(weights[2], 0.125);
  EXPECT_DOUBLE_EQ(weights[3], 0.125);
  EXPECT_DOUBLE_EQ(weights[0], 0.6);  // four times as fast as rank 1
  EXPECT_DOUBLE_EQ(weights[1], 0.15);
  const Balance even(3, {.smallest_share = 1});
  Balance forced = even;
  forced.measure({1, 1, 1}, {1, 2, 3});
  for (const double weight : forced.weights()) EXPECT_DOUBLE_EQ(weight, 1.0 / 3);
}

TEST(WeightedSampler, TakesEverySampleOnceWhileWeightsChange) {
  std::vector<Sampler> samplers;
  for (int rank = 0; rank < 3; ++rank)
    samplers.emplace_back(SamplerOptions{
        .size = 100, .batch = 16, .seed = 3, .order = Order::kShuffled, .rank = rank, .world = 3});
  Sampler whole({.size = 100, .batch = 16, .seed = 3});
  std::vector<double> weights{1, 1, 1};
  while (const auto all = whole.next()) {
    std::vector<std::int64_t> together;
    for (auto& sampler : samplers) {
      sampler.set_weights(weights);
      const auto share = sampler.next();
      ASSERT_TRUE(share);
      together.insert(together.end(), share->indices.begin(), share->indices.end());
    }
    EXPECT_EQ(together, all->indices);
    weights[0] += 2;
    weights[2] *= 0.5;
  }
  EXPECT_THROW(samplers[0].set_weights({1, 1}), Error);
  EXPECT_THROW(samplers[0].set_weights({0, 0, 0}), Error);
  EXPECT_THROW(samplers[0].set_weights({1, -1, 1}), Error);
}

}  // namespace
}  // namespace weft::data
