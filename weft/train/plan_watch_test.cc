// When steps leave their plan, and the cause that is named.
#include "weft/train/internal/plan_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace weft::train::internal {
namespace plan_watch_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 100 ms: 5 ms data, 80 ms computation, 5 ms communication, 10 ms update.
constexpr StepParts kPlanned = {0.1, 0.005, 0.08, 0.005, 0.01};

constexpr std::int64_t kSteps = 20;  // two seconds

std::vector<RankParts> both(const StepParts& parts, double waited = 0.005) {
  return {{parts, waited}, {parts, waited}};
}

TEST(PlanWatch, SaysNothingWhileStepsAreWithinTwentyPercent) {
  PlanWatch watch(kPlanned);
  StepParts now = kPlanned;
  for (const double step : {0.1, 0.119, 0.081, 0.119, 0.119}) {
    now.step = step;
    EXPECT_FALSE(watch.add(both(now), kSteps)) << step;
  }
}

TEST(PlanWatch, SpeaksOnceAfterTwoWindowsInARow) {
  PlanWatch watch(kPlanned);
  StepParts now = kPlanned;
  now.step = 0.15;
  now.compute = 0.13;
  EXPECT_FALSE(watch.add(both(now), kSteps)) << "the first window warms up";
  EXPECT_FALSE(watch.add(both(now), kSteps));
  const auto departure = watch.add(both(now), kSteps);
  ASSERT_TRUE(departure);
  EXPECT_EQ(departure->cause, Cause::kCompute);
  EXPECT_EQ(departure->text,
            "steps take 0.15 s, 50 % longer than planned: slower computation, 0.13 s instead of "
            "0.08 s");
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(watch.add(both(now), kSteps));
}

TEST(PlanWatch, AnAccidentDoesNotCount) {
  PlanWatch watch(kPlanned);
  StepParts slow = kPlanned;
  slow.step = 0.3;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(watch.add(both(i % 2 == 0 ? slow : kPlanned), kSteps));
}

// Whatever the loop does about the first change: the next one may have another cause.
TEST(PlanWatch, SpeaksAgainWhenStepsChangeAgain) {
  PlanWatch watch(kPlanned);
  const auto said = [&](double step, double first_waited) {
    StepParts now = kPlanned;
    now.step = step;
    now.compute = step - 0.02;
    std::vector<std::string> texts;
    for (int i = 0; i < 4; ++i) {
      if (const auto departure = watch.add({{now, first_waited}, {now, 0.005}}, kSteps))
        texts.push_back(departure->text);
    }
    return texts;
  };
  EXPECT_THAT(said(0.05, 0.005), ElementsAre(HasSubstr("50 % shorter than planned: faster")));
  EXPECT_THAT(said(0.15, 0.1), ElementsAre(HasSubstr("200 % longer than before: rank 1 is slow")));
  EXPECT_THAT(said(0.16, 0.1), IsEmpty());
  EXPECT_THAT(said(0.3, 0.005), ElementsAre(HasSubstr("longer than before: slower computation")));
}

TEST(PlanWatch, NumbersThatAreNotFiniteAreOutside) {
  PlanWatch watch(kPlanned);
  StepParts bad = kPlanned;
  bad.step = std::numeric_limits<double>::quiet_NaN();
  watch.add(both(bad), kSteps);
  watch.add(both(bad), kSteps);
  EXPECT_TRUE(watch.add(both(bad), kSteps));
  PlanWatch without({});
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(without.add(both(bad), kSteps)) << "nothing was planned";
}

TEST(PlanWatch, AWindowTakesAboutTwoSeconds) {
  EXPECT_EQ(PlanWatch({0.05}).steps(), 20);
  EXPECT_EQ(PlanWatch({0.005}).steps(), 50);
  EXPECT_EQ(PlanWatch({10}).steps(), 20);
  EXPECT_EQ(PlanWatch({1e-5}).steps(), 62);
}

// 17 times as long as planned: a window by steps would take half a minute.
TEST(PlanWatch, AWindowOfMuchSlowerStepsEndsAfterTwoSeconds) {
  PlanWatch watch({0.01, 0, 0.01, 0, 0});
  ASSERT_EQ(watch.steps(), 25);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(watch.add(both({0.01, 0, 0.01, 0, 0}), 25));
  const StepParts slow{0.17, 0, 0.01, 0.15, 0.01};
  EXPECT_FALSE(watch.add(both(slow), 25));
  const auto departure = watch.add(both(slow), 25);
  ASSERT_TRUE(departure);
  EXPECT_EQ(departure->cause, Cause::kLinks);
  EXPECT_NEAR(departure->measured.step, 0.17, 1e-12);
}

TEST(CauseOf, NamesARankThatIsBusyForLonger) {
  StepParts now = kPlanned;
  now.step = 0.18;
  const Departure departure = cause_of(kPlanned, {{now, 0.08}, {now, 0.001}, {now, 0.08}});
  EXPECT_EQ(departure.cause, Cause::kSlowRank);
  EXPECT_EQ(departure.rank, 1);
  EXPECT_THAT(departure.text, HasSubstr("80 % longer than planned: rank 1 is slow: it is busy for "
                                        "0.179 s of a step"));
}

// A rank is busier by 10 ms, and the links take 100 ms more.
TEST(CauseOf, ARankThatIsALittleBusierDoesNotExplainSlowLinks) {
  StepParts now = kPlanned;
  now.step = 0.2;
  now.communication = 0.105;
  EXPECT_EQ(cause_of(kPlanned, {{now, 0.17}, {now, 0.16}}).cause, Cause::kLinks);
}

TEST(CauseOf, NamesDataLoading) {
  StepParts now = kPlanned;
  now.step = 0.15;
  now.data = 0.055;
  const Departure departure = cause_of(kPlanned, both(now));
  EXPECT_EQ(departure.cause, Cause::kData);
  EXPECT_THAT(departure.text, HasSubstr("slower data loading, 0.055 s instead of 0.005 s"));
}

TEST(CauseOf, NamesLinksByTheRankThatWaitsLeast) {
  StepParts now = kPlanned, late = kPlanned;
  now.step = late.step = 0.15;
  now.communication = 0.055;
  late.communication = 0.05;
  const Departure departure = cause_of(kPlanned, {{now, 0.055}, {late, 0.05}});
  EXPECT_EQ(departure.cause, Cause::kLinks);
  EXPECT_THAT(departure.text, HasSubstr("slower links: gradients and optimizer take 0.06 s instead "
                                        "of 0.015 s"));
}

TEST(CauseOf, StepsMayAlsoBeShorter) {
  StepParts now = kPlanned;
  now.step = 0.05;
  now.compute = 0.03;
  const Departure departure = cause_of(kPlanned, both(now));
  EXPECT_EQ(departure.cause, Cause::kCompute);
  EXPECT_THAT(departure.text, HasSubstr("50 % shorter than planned: faster computation"));
}

}  // namespace plan_watch_test
}  // namespace weft::train::internal
