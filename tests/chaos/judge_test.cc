#include "tests/chaos/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/chaos/report.h"

namespace weft::chaos {
namespace judge_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;

// Finishes the steps first … last of a group, one every 0.1 s from `at_s`.
void train(JobRecord& job, std::int64_t group, std::int64_t first, std::int64_t last, double at_s) {
  for (int rank = 0; rank < kRanks; ++rank) {
    job.steps.push_back({.at_s = at_s - 0.1,
                         .rank = rank,
                         .ranks = kRanks,
                         .group = group,
                         .step = first - 1,
                         .position = 64 * (first - 1),
                         .ready = true});
  }
  for (std::int64_t step = first; step <= last; ++step, at_s += 0.1) {
    for (int rank = 0; rank < kRanks; ++rank) {
      job.steps.push_back({.at_s = at_s + 0.001 * rank,
                           .rank = rank,
                           .ranks = kRanks,
                           .group = group,
                           .step = step,
                           .position = 64 * step});
    }
  }
}

JobRecord undisturbed() {
  JobRecord job;
  train(job, 0, 1, 20, 1);
  job.digest = "aa";
  return job;
}

// Rank 1 is killed after step 10, at 2.0 s. Steps 9 and 10 are done again, from 3.0 s on.
JobRecord recovered() {
  JobRecord job;
  train(job, 0, 1, 10, 1);
  train(job, 1, 9, 20, 3);
  job.faults.push_back(
      {.fault = {.kind = FaultKind::kKill, .victim = 1}, .at_s = 2.0, .step = 10, .reached = true});
  job.lines.push_back(
      {2.05, "weft: rank 1 is lost: SIGKILL (signal 9); a new process replaces it"});
  job.digest = "aa";
  return job;
}

Verdict verdict_of(const JobRecord& job, const Expected& expected = {}) {
  return judge(undisturbed(), job, expected);
}

TEST(Judge, PassesAJobThatRecoversAndMeasuresIt) {
  const Verdict verdict = verdict_of(recovered());
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_TRUE(verdict.faults_happened);
  ASSERT_EQ(verdict.faults.size(), 1U);
  EXPECT_NEAR(*verdict.faults[0].named_s, 0.05, 1e-9);
  EXPECT_NEAR(*verdict.faults[0].next_step_s, 1.001, 1e-9);
  EXPECT_NEAR(*verdict.faults[0].caught_up_s, 1.201, 1e-9);
  EXPECT_EQ(verdict.faults[0].redone, 2);
  EXPECT_EQ(verdict.steps, 20);
  EXPECT_EQ(verdict.redone, 2);
  EXPECT_NEAR(verdict.wall_s, 3.1, 1e-9);    // 1.001 s to 4.101 s
  EXPECT_NEAR(verdict.useful_s, 1.9, 1e-9);  // 19 steps of 0.1 s
  EXPECT_NEAR(verdict.goodput, 1.9 / 3.1, 1e-9);
  EXPECT_NEAR(verdict.interrupted, 1.201 / 3.1, 1e-9);
}

TEST(Judge, TakesTheTimeOfAStepThatItIsGiven) {
  EXPECT_NEAR(seconds_per_step(undisturbed()), 0.1, 1e-9);
  EXPECT_EQ(seconds_per_step({}), 0);
  const Verdict verdict = verdict_of(recovered(), {.step_s = 0.05});
  EXPECT_NEAR(verdict.useful_s, 19 * 0.05, 1e-9);
  EXPECT_NEAR(verdict.goodput, 19 * 0.05 / 3.1, 1e-9);
}

TEST(Judge, MeasuresTheStepsBetweenFaults) {
  EXPECT_FALSE(verdict_of(recovered()).calm_step_s);  // it ends too soon after the fault
  JobRecord job = recovered();
  train(job, 1, 21, 40, 10);
  EXPECT_NEAR(*verdict_of(job).calm_step_s, 0.1, 1e-9);
}

TEST(Judge, DoesNotTakeTheEndOfAnOldStepForRecovery) {
  JobRecord job = recovered();
  for (int rank = 0; rank < kRanks; ++rank)  // the old group still finishes step 11
    job.steps.push_back({.at_s = 2.01, .rank = rank, .ranks = kRanks, .step = 11, .position = 704});
  EXPECT_NEAR(*verdict_of(job).faults[0].next_step_s, 1.001, 1e-9);
}

TEST(Judge, FindsOtherBytesOrNoCheckpoint) {
  JobRecord job = recovered();
  job.digest = "bb";
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("differs from the undisturbed")));
  EXPECT_THAT(verdict_of(job, {.same_weights = false}).problems, IsEmpty());
  job.digest = "";
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("left no checkpoint")));
}

TEST(Judge, FindsALostStepAndOtherSamples) {
  JobRecord job = recovered();
  std::erase_if(job.steps, [](const RankStep& one) { return one.step == 15 && one.rank == 1; });
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("step 15 was lost")));
  job = recovered();
  for (RankStep& one : job.steps) {
    if (one.step == 14) one.position += 64;
  }
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("step 14 used other samples")));
}

TEST(Judge, FindsAJobThatFailsOrHangs) {
  JobRecord job = recovered();
  job.exit_code = 137;
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("exit code 137: weft: rank 1")));
  job.timed_out = true;
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("did not end within its limit")));
}

TEST(Judge, FindsAFaultWithoutAStepAfterIt) {
  JobRecord job = recovered();
  std::erase_if(job.steps, [](const RankStep& one) { return one.group == 1; });
  const Verdict verdict = verdict_of(job);
  EXPECT_FALSE(verdict.faults[0].next_step_s);
  EXPECT_THAT(verdict.faults[0].problem, HasSubstr("no step was finished after it"));
}

TEST(Judge, FindsALossThatIsNotNamedAndAFalseAlarm) {
  JobRecord job = recovered();
  job.lines.clear();
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("does not name the rank")));
  job.lines.push_back({2.05, "weft: rank 12 is lost: SIGKILL (signal 9); a new process …"});
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("does not name the rank"),
                                                    HasSubstr("false alarm: weft: rank 12")));
  job = recovered();
  job.lines.push_back({1.5, "weft: rank 0 (process 7) is stopped by a signal: killing it"});
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("false alarm: weft: rank 0")));
}

TEST(Judge, FindsAnOldGroupThatGoesOn) {
  JobRecord job = recovered();
  for (int rank = 0; rank < kRanks; ++rank)
    job.steps.push_back({.at_s = 3.5, .rank = rank, .ranks = kRanks, .step = 12, .position = 768});
  EXPECT_THAT(verdict_of(job).problems, ElementsAre(HasSubstr("group 0 finished step 12 after")));
}

TEST(Judge, FindsWhatIsLeftBehind) {
  JobRecord job = recovered();
  job.leftovers = {"process 7: sleep"};
  EXPECT_THAT(verdict_of(job).problems, ElementsAre("left behind: process 7: sleep"));
}

TEST(Judge, SaysThatAFaultDidNotHappen) {
  JobRecord job = recovered();
  job.faults[0].reached = false;
  job.faults[0].why_not = "the rank had no process";
  Outcome outcome{.plans = {{.disturbed = job, .verdict = verdict_of(job)}}};
  EXPECT_EQ(exit_code(outcome), 3);
  job.faults.clear();
  job.lines.clear();
  outcome.plans[0] = {.disturbed = job, .verdict = verdict_of(job)};
  EXPECT_EQ(exit_code(outcome), 3);
  EXPECT_EQ(exit_code(Outcome{}), 3);
}

TEST(Judge, MeasuresTheLongestWaitWithinAPause) {
  JobRecord job;
  train(job, 0, 1, 11, 1);  // one more step after the pause began
  train(job, 0, 12, 20, 3);
  job.digest = "aa";
  job.faults.push_back({.fault = {.kind = FaultKind::kPause, .victim = 0, .lasts_s = 0.9},
                        .at_s = 1.95,
                        .step = 10,
                        .reached = true});
  const Verdict verdict = verdict_of(job);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_NEAR(*verdict.faults[0].next_step_s, 1.0, 1e-9);  // 2.001 s to 3.001 s
  EXPECT_NEAR(verdict.interrupted, 1.0 / 2.8, 1e-9);
}

TEST(Judge, FollowsAJobThatWasResumed) {
  JobRecord job = recovered();
  job.faults[0].fault.kind = FaultKind::kTerm;
  job.lines = {{2.01, "[rank 1] warning: this rank was told to stop: all ranks stop …"}};
  for (RankStep& one : job.steps) {
    if (one.group == 1) {
      one.job = 1;
      one.group = 0;
    }
  }
  const Verdict verdict = verdict_of(job);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_NEAR(*verdict.faults[0].next_step_s, 1.001, 1e-9);
}

TEST(Percentile, IsTheNearestRank) {
  EXPECT_FALSE(percentile({}, 0.5));
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({4, 3, 1, 2}, 0.5), 2);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  EXPECT_EQ(percentile(hundred, 1), 100);
}

TEST(ChaosReport, HasTheTimesOfEachFaultAndOpensAsAPage) {
  const JobRecord job = recovered();
  const Outcome outcome{.command = "weft chaos </script>",
                        .seed = 7,
                        .plans = {{.name = "dp",
                                   .settings = {"parallel.dp=2"},
                                   .ranks = 2,
                                   .undisturbed = undisturbed(),
                                   .disturbed = job,
                                   .verdict = verdict_of(job)}}};
  EXPECT_EQ(exit_code(outcome), 0);
  const std::string text = to_json(outcome);
  const auto data = nlohmann::json::parse(text);
  EXPECT_EQ(data["summary"]["recovered"], 1);
  EXPECT_NEAR(data["summary"]["by_kind"]["kill"]["next_step_s"]["p99"].get<double>(), 1.001, 1e-9);
  EXPECT_EQ(data["plans"][0]["same_digest"], true);
  EXPECT_EQ(data["plans"][0]["faults"][0]["redone"], 2);
  // Two spans: before the kill, and after it.
  EXPECT_EQ(data["plans"][0]["lanes"][1]["spans"].size(), 2U);
  const std::string page = to_html(text);
  EXPECT_THAT(page, HasSubstr("\"seed\":7"));
  EXPECT_EQ(page.find("weft chaos </script>"), std::string::npos);
  EXPECT_EQ(page.find("http"), page.find("http://www.w3.org"));  // it loads nothing
  EXPECT_THAT(to_text(outcome), HasSubstr("dp            1      1.001"));
}

}  // namespace judge_test
}  // namespace weft::chaos
