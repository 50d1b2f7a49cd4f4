#include "tests/chaos/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/chaos/plans.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/testing/refusal.h"

namespace weft::chaos {
namespace schedule_test {

using enum FaultKind;

const std::vector<FaultKind> kAll{kKill, kStop,     kPause,     kSlow,
                                  kTerm, kDiskFull, kPartition, kFailpoint};

TEST(FaultNames, AreParsedAndUnknownOnesAreNamed) {
  EXPECT_EQ(parse_faults("kill,disk-full"), (std::vector{kKill, kDiskFull}));
  for (const FaultKind kind : kAll) EXPECT_EQ(parse_faults(to_string(kind)), std::vector{kind});
  expect_refused([] { parse_faults("kill,burn"); }, Errc::kInvalidArgument,
                 "there is no \"burn\"; there are kill, stop");
  expect_refused([] { parse_faults(""); }, Errc::kInvalidArgument, "at least one kind");
}

TEST(FaultsAtSteps, RepeatForASeedAndDifferForAnother) {
  const StepsOptions steps{.count = 40, .first = 10, .last = 400, .end = 500, .step_s = 0.01};
  ScheduleOptions options{.kinds = kAll, .seed = 5, .ranks = 4, .hosts = 2};
  const auto faults = faults_at_steps(options, steps);
  EXPECT_EQ(faults_at_steps(options, steps), faults);
  options.seed = 6;
  EXPECT_NE(faults_at_steps(options, steps), faults);
}

TEST(FaultsAtSteps, AreOneAStepInOrderAndOfEveryKind) {
  const StepsOptions steps{.count = 40, .first = 10, .last = 60, .end = 70, .step_s = 0.01};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto faults =
        faults_at_steps({.kinds = kAll, .seed = seed, .ranks = 4, .hosts = 2}, steps);
    ASSERT_EQ(faults.size(), 40U);
    std::set<FaultKind> kinds;
    std::int64_t before = 9;
    for (const Fault& fault : faults) {
      kinds.insert(fault.kind);
      EXPECT_GT(fault.after_step, before);
      EXPECT_LE(fault.after_step, 60);
      EXPECT_GE(fault.victim, 0);
      EXPECT_LT(fault.victim, fault.kind == kPartition ? 2 : 4);
      EXPECT_LE(fault.delay_s, 0.015);
      EXPECT_EQ(fault.lasts_s > 0, has_a_duration(fault.kind));
      EXPECT_LE(fault.lasts_s, 0.5 * 0.01 * static_cast<double>(70 - fault.after_step) + 1e-9);
      before = fault.after_step;
    }
    EXPECT_GE(kinds.size(), 7U);  // a failpoint may have become a kill
  }
}

TEST(FaultsAtSteps, OverlapInPairs) {
  const auto faults = faults_at_steps({.ranks = 4, .overlap = true},
                                      {.count = 6, .first = 1, .last = 100, .end = 110});
  for (std::size_t i = 0; i < faults.size(); ++i) {
    EXPECT_EQ(faults[i].after_step < 0, i % 2 == 1);
    EXPECT_TRUE(i % 2 == 0 || faults[i].delay_s <= 0.5);
  }
}

TEST(FaultsAtSteps, FitTheStepsOrAreRefused) {
  EXPECT_EQ(faults_at_steps({}, {.count = 3, .first = 5, .last = 7}).size(), 3U);
  expect_refused([] { faults_at_steps({}, {.count = 4, .first = 5, .last = 7}); },
                 Errc::kInvalidArgument, "there are 3 steps for 4 faults");
}

// WEFT_FAIL does not apply to a process that has replaced a lost rank.
TEST(FaultsAtSteps, PutFailpointsOnRanksThatWereNotLostBefore) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto faults = faults_at_steps({.kinds = {kFailpoint, kKill}, .seed = seed, .ranks = 4},
                                        {.count = 12, .first = 1, .last = 100});
    std::set<int> lost;
    int failpoints = 0;
    for (const Fault& fault : faults) {
      if (fault.kind == kFailpoint) {
        ++failpoints;
        EXPECT_FALSE(lost.contains(fault.victim));
        const auto parsed = parse_failpoints(fault.failpoint);
        ASSERT_EQ(parsed.size(), 1U);
        EXPECT_EQ(parsed[0].rank, fault.victim);
        EXPECT_EQ(parsed[0].step, fault.after_step + 1);
      }
      lost.insert(fault.victim);
    }
    EXPECT_GE(failpoints, 1);
  }
}

// Inter-arrival times of a Poisson process have this mean, and a standard deviation as large.
TEST(FaultsAtTimes, ArePoissonWithTheirMean) {
  const auto faults = faults_at_times({.seed = 3}, 60, 60 * 4000);
  ASSERT_GT(faults.size(), 3000U);
  const auto count = static_cast<double>(faults.size());
  double sum = 0, squares = 0;
  for (const Fault& fault : faults) {
    EXPECT_EQ(fault.after_step, -1);
    sum += fault.delay_s;
    squares += fault.delay_s * fault.delay_s;
  }
  const double mean = sum / count, deviation = std::sqrt(squares / count - mean * mean);
  EXPECT_NEAR(mean, 60, 4 * 60 / std::sqrt(count));
  EXPECT_NEAR(deviation, 60, 4 * 60 * std::sqrt(2 / count));
  EXPECT_LT(sum, 60.0 * 4000);
}

TEST(FaultsAtTimes, HaveNoFailpoints) {
  expect_refused([] { faults_at_times({.kinds = {kFailpoint}}, 1, 1); }, Errc::kInvalidArgument,
                 "failpoints happen at steps");
}

TEST(Divide, GivesEveryFaultToOneJob) {
  EXPECT_EQ(divide(7, 3), (std::vector{2, 2, 3}));
  const auto parts = divide(200, 17);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0), 200);
  EXPECT_EQ(*std::max_element(parts.begin(), parts.end()), 12);
  EXPECT_EQ(*std::min_element(parts.begin(), parts.end()), 11);
}

TEST(Plans, AreParsedByNameAndHaveDifferentSettings) {
  EXPECT_EQ(parse_plans("all").size(), all_plans().size());
  EXPECT_EQ(parse_plans("tp,dp")[1].name, "dp");
  expect_refused([] { parse_plans("dp,xp"); }, Errc::kInvalidArgument, "there is no \"xp\"");
  std::set<std::vector<std::string>> settings;
  std::set<std::string> names;
  for (const Plan& plan : all_plans()) {
    settings.insert(plan.settings);
    names.insert(plan.name);
  }
  EXPECT_EQ(settings.size(), all_plans().size());
  EXPECT_EQ(names.size(), all_plans().size());
}

}  // namespace schedule_test
}  // namespace weft::chaos
