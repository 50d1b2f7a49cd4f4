#include "weft/rank_link/usable_ranks.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::rank_link {
namespace {

std::vector<int> most_up_to(const UsableRanks& usable, int last) {
  std::vector<int> all;
  for (int ranks = 0; ranks <= last; ++ranks) all.push_back(usable.most(ranks));
  return all;
}

TEST(UsableRanks, AreMultiplesOfTheSizeOfTheMesh) {
  EXPECT_EQ(most_up_to({}, 3), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(most_up_to({.multiple = 2}, 5), (std::vector{0, 0, 2, 2, 4, 4}));
  EXPECT_EQ((UsableRanks{.multiple = 2}.least(3)), 4);
  EXPECT_EQ((UsableRanks{.multiple = 2}.describe()), "multiples of 2");
}

TEST(UsableRanks, DivideTheMicroShards) {
  const UsableRanks four{.shards = 4}, stages{.multiple = 3, .shards = 2};
  EXPECT_EQ(most_up_to(four, 6), (std::vector{0, 1, 2, 2, 4, 4, 4}));
  EXPECT_EQ(most_up_to(stages, 7), (std::vector{0, 0, 0, 3, 3, 3, 6, 6}));
  EXPECT_EQ(four.least(3), 4);
  EXPECT_EQ(four.least(5), 0);
  EXPECT_TRUE(four.has(2));
  EXPECT_FALSE(four.has(3));
  EXPECT_EQ(four.describe(), "1, 2 or 4 ranks");
}

TEST(UsableRanks, AreAtMostAsManyAsABatchHasSamples) {
  const UsableRanks three{.replicas = 3}, stages{.multiple = 2, .replicas = 2};
  const UsableRanks shards{.shards = 8, .replicas = 5};
  EXPECT_EQ(most_up_to(three, 5), (std::vector{0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(most_up_to(stages, 7), (std::vector{0, 0, 2, 2, 4, 4, 4, 4}));
  EXPECT_EQ(most_up_to(shards, 9), (std::vector{0, 1, 2, 2, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(three.least(2), 2);
  EXPECT_EQ(three.least(4), 0);
  EXPECT_EQ(shards.least(5), 0);
  EXPECT_EQ(stages.describe(), "multiples of 2 up to 4");
  EXPECT_EQ(shards.describe(), "1, 2 or 4 ranks");
}

TEST(UsableRanks, AreToldToTheLauncherAsText) {
  for (const UsableRanks& usable :
       {UsableRanks{}, UsableRanks{.multiple = 6}, UsableRanks{.multiple = 2, .shards = 8},
        UsableRanks{.replicas = 3}, UsableRanks{.multiple = 2, .shards = 8, .replicas = 5}})
    EXPECT_EQ(usable_ranks_of(to_text(usable)), usable) << to_text(usable);
  for (const char* wrong : {"", "x", "0", "-2 4"}) EXPECT_EQ(usable_ranks_of(wrong), UsableRanks{});
}

}  // namespace
}  // namespace weft::rank_link
