#include "weft/train/internal/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::train::stragglers_test {
namespace {

using internal::awaited_shares;
using internal::StragglerWatch;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

observe::RankState waits(double waited_ms, double step_ms = 100) {
  return {.waited_ms = waited_ms, .step_ms = step_ms};
}
auto near(double value) { return DoubleNear(value, 1e-12); }

TEST(AwaitedShares, AreTheWaitOfTheOthersLessTheOwnOverTheStep) {
  const observe::RankState ranks[] = {waits(50), waits(0), waits(60), waits(40)};
  EXPECT_THAT(awaited_shares(ranks),
              ElementsAre(near(-1 / 6.0), near(0.5), near(-0.3), near(-1 / 30.0)));
}

TEST(AwaitedShares, AreSmallIfAllRanksWaitAlike) {
  const observe::RankState ranks[] = {waits(50), waits(48), waits(52)};
  EXPECT_THAT(awaited_shares(ranks), ElementsAre(near(0), near(0.03), near(-0.03)));
}

TEST(AwaitedShares, AreZeroForOneRankAndBeforeTheFirstStep) {
  const observe::RankState one[] = {waits(0)}, none[] = {waits(0, 0), waits(0, 0)};
  EXPECT_THAT(awaited_shares(one), ElementsAre(0));
  EXPECT_THAT(awaited_shares(none), ElementsAre(0, 0));
}

TEST(StragglerWatch, NamesASlowRankWithinTwentyStepsAndOnce) {
  StragglerWatch watch;
  EXPECT_EQ(watch.add(10, {0, 0.9, 0}), std::nullopt);  // the first steps do not count
  EXPECT_EQ(watch.add(10, {0, 0.4, 0}), std::nullopt);
  EXPECT_THAT(watch.add(10, {0, 0.3, 0}), Optional(ElementsAre(1)));
  EXPECT_NEAR(watch.share(1), 0.3, 1e-12);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(watch.add(10, {0, 0.3, 0}), std::nullopt);
}

TEST(StragglerWatch, WaitsForTenStepsHoweverOftenItLooks) {
  StragglerWatch watch;
  std::optional<std::vector<int>> slow;
  int steps = 0;
  while (!slow && steps < 100) {
    ++steps;
    slow = watch.add(1, {0.5, 0});
  }
  EXPECT_EQ(steps, 30);
  EXPECT_THAT(slow, Optional(ElementsAre(0)));
  StragglerWatch seldom;
  EXPECT_THAT(seldom.add(50, {0.5, 0}), Optional(ElementsAre(0)));
}

TEST(StragglerWatch, IgnoresAnAccident) {
  StragglerWatch watch;
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(watch.add(10, {i % 2 == 0 ? 0.5 : 0.0, 0.05}), std::nullopt) << i;
}

TEST(StragglerWatch, RanksThatAreLateInTurnAreNotSlow) {
  StragglerWatch watch;
  for (int i = 0; i < 100; ++i) {
    const double one = i % 2 == 0 ? 0.4 : -0.4;
    EXPECT_EQ(watch.add(5, {one, -one}), std::nullopt);
  }
}

TEST(StragglerWatch, NamesRanksThatAreSlowForAShortTimeEverMoreSeldom) {
  StragglerWatch watch;
  int answers = 0;
  for (int i = 0; i < 400; ++i) {
    const double share = i / 5 % 2 == 0 ? 0.3 : -0.3;  // 50 steps each
    if (watch.add(10, {share, -share})) ++answers;
  }
  EXPECT_EQ(answers, 3);
  std::optional<std::vector<int>> slow;
  for (int i = 0; i < StragglerWatch::kMaxSamples && !slow; ++i) slow = watch.add(10, {0, 0.3});
  EXPECT_THAT(slow, Optional(ElementsAre(1)));
}

TEST(StragglerWatch, SaysWhenItChangesAndWhenItIsOver) {
  StragglerWatch watch;
  for (int i = 0; i < 3; ++i) watch.add(10, {0.3, 0});
  EXPECT_EQ(watch.add(10, {0.1, 0}), std::nullopt);  // still slow
  EXPECT_EQ(watch.add(10, {0.1, 0}), std::nullopt);
  EXPECT_EQ(watch.add(10, {0.02, 0.4}), std::nullopt);
  EXPECT_THAT(watch.add(10, {0.02, 0.4}), Optional(ElementsAre(1)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(watch.add(10, {0, 0}), std::nullopt);
  EXPECT_THAT(watch.add(10, {0, 0}), Optional(IsEmpty()));
}

}  // namespace
}  // namespace weft::train::stragglers_test
