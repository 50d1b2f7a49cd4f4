#include "weft/elastic/holdings.h"

#include <gtest/gtest.h>

#include "weft/base/random.h"
#include "weft/base/testing/decimal_comma.h"
#include "weft/base/testing/refusal.h"

namespace weft::elastic {
namespace {

Holding of(std::uint32_t epoch, int world, int owner, std::int64_t step) {
  return {epoch, world, owner, step, 100 + owner};
}

TEST(Choose, TakesTheNewestStateThatIsWhole) {
  // Rank 2 has died while it copied step 9: its part of step 8 is the newest.
  const std::vector<std::vector<Holding>> held{
      {of(0, 3, 0, 9), of(0, 3, 0, 8), of(0, 3, 1, 9), of(0, 3, 1, 8), of(0, 3, 2, 8)}, {}};
  const auto choice = choose(held);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->step, 8);
  EXPECT_EQ(choice->holders, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(choice->bytes, (std::vector<std::int64_t>{100, 101, 102}));
}

TEST(Choose, TakesPartsOfSeveralRanksAndNeverMixesEpochs) {
  const std::vector<std::vector<Holding>> held{{of(1, 2, 0, 7), of(0, 2, 0, 5)},
                                               {of(2, 2, 1, 7), of(0, 2, 1, 5)}};
  const auto choice = choose(held);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->step, 5);
  EXPECT_EQ(choice->holders, (std::vector<int>{0, 1}));
}

TEST(Choose, PrefersTheLaterEpochOfTheSameStep) {
  const auto choice = choose({{of(0, 1, 0, 5), of(3, 1, 0, 5)}});
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->epoch, 3U);
}

TEST(Choose, SaysWhichPartsAreLost) {
  std::string missing;
  EXPECT_FALSE(choose({{of(0, 4, 0, 9)}, {of(0, 4, 2, 9)}}, &missing));
  EXPECT_EQ(missing, "the parts of ranks 1, 3 of step 9");
  missing.clear();
  EXPECT_FALSE(choose({{}, {}}, &missing));
  EXPECT_EQ(missing, "");
}

TEST(CopyPlaces, AreOnAnotherHost) {
  EXPECT_TRUE(copy_places({{0, 1, 2}}).empty());
  EXPECT_EQ(copy_places({{0}, {1}, {2}}), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(copy_places({{0, 2}, {1, 3}}), (std::vector<int>{1, 0, 3, 2}));
  EXPECT_EQ(copy_places({{0, 1, 2}, {3}}), (std::vector<int>{3, 3, 3, 0}));
}

// With copies on the owner's host and at its place, no host's loss loses a part.
TEST(CopyPlaces, LeaveAWholeStateWhenAnyHostIsLost) {
  Random random(7, 1, 0);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::vector<int>> hosts(2 + random.next_u64() % 4);
    const int world = static_cast<int>(hosts.size() + random.next_u64() % 8);
    for (int rank = 0; rank < world; ++rank) {
      const auto at = rank < static_cast<int>(hosts.size()) ? static_cast<std::uint64_t>(rank)
                                                            : random.next_u64() % hosts.size();
      hosts[at].push_back(rank);
    }
    const auto places = copy_places(hosts);
    for (std::size_t lost = 0; lost < hosts.size(); ++lost) {
      std::vector<std::vector<Holding>> held;
      for (std::size_t host = 0; host < hosts.size(); ++host) {
        if (host == lost) continue;
        std::vector<Holding> here;  // a rank reads what all ranks of its host have
        for (const int rank : hosts[host]) {
          here.push_back(of(0, world, rank, 3));
          for (int owner = 0; owner < world; ++owner) {
            if (places[static_cast<std::size_t>(owner)] == rank)
              here.push_back(of(0, world, owner, 3));
          }
        }
        held.push_back(here);
      }
      EXPECT_TRUE(choose(held)) << "trial " << trial;
    }
  }
}

TEST(Holdings, AreReadBackFromTheirText) {
  const std::vector<Holding> some{of(0, 2, 1, 5), of(70000, 8, 7, 1'000'000)};
  EXPECT_EQ(holdings_of(to_text(some)), some);
  EXPECT_TRUE(holdings_of("").empty());
  for (const char* bad : {"1 2", "0 2 2 5 6\n", "0 0 0 5 6\n", "a b c d e\n", "0 2 0 -1 4\n"})
    expect_refused([&] { holdings_of(bad); }, Errc::kCorrupt, "unreadable");
}

TEST(Holdings, HaveTheSameTextInEachLocale) {
  const DecimalComma locale;
  EXPECT_EQ(to_text({of(0, 2, 1, 5000)}), "0 2 1 5000 101\n");
}

TEST(CopyInterval, KeepsCopiesWithinTheirShareOfTheTime) {
  CopyInterval interval;
  EXPECT_TRUE(interval.is_due(0));
  interval.taken(0, 5.0, 0);  // the first copy is not measured
  EXPECT_TRUE(interval.is_due(1));
  std::int64_t step = 1;
  for (const int steps : {2, 4, 8, 14, 14}) {  // 4 ms; 1 % of a step is 0.3 ms
    interval.taken(step, 0.004, 0.030);
    EXPECT_FALSE(interval.is_due(step + steps - 1));
    EXPECT_TRUE(interval.is_due(step + steps));
    step += steps;
  }
  interval.taken(step, 0.001, 0.5);
  EXPECT_TRUE(interval.is_due(step + 1));
}

// 100 times its duration would be 30 s without a copy.
TEST(CopyInterval, DoublesAtMostAfterACopyThatTookLongByChance) {
  CopyInterval interval;
  std::int64_t step = 0;
  for (int copy = 0; copy < 6; ++copy, ++step) {
    while (!interval.is_due(step)) ++step;
    interval.taken(step, 0.00095, 0.005);
  }
  while (!interval.is_due(step)) ++step;
  interval.taken(step, 0.3, 0.005);
  EXPECT_FALSE(interval.is_due(step + 37));
  EXPECT_TRUE(interval.is_due(step + 38));
  step += 38;
  interval.taken(step, 0.00095, 0.005);
  EXPECT_TRUE(interval.is_due(step + 19));
}

TEST(CopyInterval, TakesAFixedNumberOfSteps) {
  CopyInterval interval(4);
  interval.taken(2, 100, 0.001);
  EXPECT_FALSE(interval.is_due(5));
  EXPECT_TRUE(interval.is_due(6));
}

}  // namespace
}  // namespace weft::elastic
