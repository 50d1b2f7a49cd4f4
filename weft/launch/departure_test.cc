// What the launcher says about a job that was asked to go, and commands that it runs beside it.
#include "weft/launch/internal/departure.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "weft/launch/internal/polled_command.h"
#include "weft/launch/supervision.h"
#include "weft/launch/testing/rank_ends.h"

namespace weft::launch::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Time kRequest = Time{} + seconds(1000);
const Departure kAsked{"SIGTERM", kRequest, seconds(30)};

TEST(Departure, EndsATenthBeforeTheGracePeriodAndAtMostTwoSeconds) {
  EXPECT_EQ(end_of_grace(kAsked), kRequest + seconds(28));
  EXPECT_EQ(end_of_grace({"SIGTERM", kRequest, seconds(10)}), kRequest + seconds(9));
  EXPECT_EQ(end_of_grace({"SIGTERM", kRequest, seconds(600)}), kRequest + seconds(598));
}

TEST(Departure, NamesTheCheckpointThatWasWrittenInTime) {
  EXPECT_EQ(line_of({kAsked, true, false, "runs/a/ckpt/step-7", kRequest + milliseconds(1250)}),
            "the checkpoint runs/a/ckpt/step-7 was complete 1.25 s after SIGTERM");
  // Ranks that hang after their checkpoint lose nothing.
  EXPECT_EQ(line_of({kAsked, true, true, "step-7", kRequest + seconds(2), {}, true}),
            "the checkpoint step-7 was complete 2 s after SIGTERM");
}

TEST(Departure, DoesNotTakeACheckpointForAnAnswerThatIsWrittenAnyway) {
  EXPECT_EQ(line_of({kAsked, true, true, "step-7", kRequest + seconds(25)}),
            "no checkpoint fit into the grace period of 30 s; the newest one is step-7");
}

TEST(Departure, IsSilentAboutAProgramThatStopsByItselfAndSavesNothing) {
  Departure own{.why = "rank 0 asked to stop", .since = kRequest, .by_program = true};
  EXPECT_EQ(line_of({own, true, false, "", {}}), "");
  EXPECT_EQ(line_of({own, true, false, "step-7", kRequest + seconds(1)}),
            "the checkpoint step-7 was complete 1 s after rank 0 asked to stop");
}

TEST(Departure, SaysThatNoCheckpointFit) {
  EXPECT_EQ(line_of({kAsked, true, true, "", {}}),
            "no checkpoint fit into the grace period of 30 s; there is no earlier one");
  EXPECT_EQ(line_of({kAsked, true, true, "step-5", kRequest - seconds(9)}),
            "no checkpoint fit into the grace period of 30 s; the newest one is step-5");
  EXPECT_EQ(line_of({kAsked, true, false, "step-5", kRequest - seconds(9)}),
            "no checkpoint was written after SIGTERM; the newest one is step-5");
}

TEST(Departure, CountsACheckpointThatWasCompleteBeforeTheNodeLearnedOfTheRequest) {
  Departure learned = kAsked;
  learned.by_membership = true;
  EXPECT_EQ(line_of({learned, true, false, "step-7", kRequest - seconds(1)}),
            "the checkpoint step-7 was complete 0 s after SIGTERM");
  EXPECT_EQ(line_of({learned, true, false, "step-7", kRequest - seconds(3)}),
            "no checkpoint was written after SIGTERM; the newest one is step-7");
  EXPECT_EQ(line_of({learned, true, true, "step-7", kRequest - seconds(1)}),
            "no checkpoint fit into the grace period of 30 s; the newest one is step-7");
}

TEST(Departure, SaysThatNoCheckpointFitIfAnotherNodeKilledItsRanksABitEarlier) {
  Leave leave{kAsked, true, false, "", {}, kRequest + milliseconds(27'900)};
  EXPECT_EQ(line_of(leave), "no checkpoint was written after SIGTERM; there is no earlier one");
  leave.asked.by_membership = true;
  EXPECT_EQ(line_of(leave),
            "no checkpoint fit into the grace period of 30 s; there is no earlier one");
  leave.ended = kRequest + seconds(25);
  EXPECT_EQ(line_of(leave), "no checkpoint was written after SIGTERM; there is no earlier one");
}

TEST(Departure, SaysNothingOfCheckpointsOfProgramsThatAreNotKnown) {
  EXPECT_EQ(line_of({kAsked, false, false, "", {}}), "");
  EXPECT_EQ(line_of({kAsked, false, true, "", {}}),
            "the job did not end within the grace period of 30 s");
}

Situation asked() {
  Situation seen;
  seen.ranks = {std::nullopt};
  seen.grace_end = kRequest + seconds(9);
  return seen;
}

TEST(Departure, KillsRanksAtTheEndOfTheGracePeriodThatTheyWereTold) {
  Situation seen = asked();
  seen.stop_sent = kRequest;
  EXPECT_EQ(decide(seen, Policy{}, kRequest + milliseconds(8999)).until, kRequest + seconds(9));
  EXPECT_EQ(decide(seen, Policy{}, kRequest + seconds(9)).act, Act::kKill);
}

TEST(Departure, KillsRanksThatStopByThemselvesAtItsEndToo) {
  const Situation seen = asked();
  EXPECT_EQ(decide(seen, Policy{}, kRequest + milliseconds(8999)).act, Act::kWait);
  EXPECT_EQ(decide(seen, Policy{}, kRequest + seconds(9)).act, Act::kKill);
}

TEST(Departure, IsNotAnsweredByARestart) {
  Situation seen = asked();
  seen.ranks[0] = RankEnd{.status = {false, 128 + SIGTERM}, .when = kRequest, .told = true};
  seen.asked = true;
  EXPECT_EQ(decide(seen, {.max_restarts = 3}, kRequest).act, Act::kFinish);
}

// A replacement that loads gets no signal: it joins the others first, and stops with them.
TEST(Departure, EndsAReplacementThatHasNotJoinedOnceTheOthersHaveStopped) {
  Situation seen = situation({std::nullopt, std::nullopt});
  replaced(seen, 1);
  seen.grace_end = kRequest + seconds(9);
  seen.stop_sent = kRequest;
  seen.stop_signals = 1;
  EXPECT_EQ(ranks_that_stop_later(seen), std::set{1});
  EXPECT_EQ(decide(seen, Policy{}, kRequest).act, Act::kWait);
  seen.ranks[0] = RankEnd{.status = {false, 128 + SIGTERM}, .when = kRequest, .told = true};
  EXPECT_TRUE(ranks_that_stop_later(seen).empty());
  const auto end = decide(seen, Policy{}, kRequest);
  EXPECT_EQ(end.act, Act::kDismiss);
  EXPECT_EQ(end.rank, 1);
}

TEST(Departure, EndsReplacementsOfANodeOnceTheRanksOfAllNodesHaveStopped) {
  Situation seen = asked();
  seen.newcomers = {{0, RankPhase::kStarting}};
  seen.stop_sent = kRequest;
  seen.other_nodes = true;
  seen.followed = Situation::Followed{.over = kRequest, .stopped = true};
  EXPECT_EQ(ranks_that_stop_later(seen), std::set{0});
  EXPECT_EQ(decide(seen, Policy{}, kRequest).act, Act::kWait);
  seen.followed->has_members = false;
  EXPECT_EQ(decide(seen, Policy{}, kRequest).act, Act::kDismiss);
}

TEST(Departure, EndsTheLauncherOfANodeThatLeavesOnceItsRanksHaveEnded) {
  Situation seen = asked();
  seen.followed.emplace();
  seen.followed->away = true;
  EXPECT_EQ(decide(seen, Policy{}, kRequest).act, Act::kWait);
  seen.ranks = {RankEnd{.status = {true, SIGKILL}, .when = kRequest, .done_without = true}};
  EXPECT_EQ(decide(seen, Policy{}, kRequest).act, Act::kFinish);
}

TEST(Departure, EndsTheLauncherOfANodeWithoutRanksWhoseRequestNobodyAnswers) {
  Situation seen = asked();
  seen.followed.emplace();
  seen.ranks = {};
  EXPECT_EQ(decide(seen, Policy{}, kRequest).act, Act::kWait);
  EXPECT_EQ(decide(seen, Policy{}, kRequest).until, kRequest + seconds(9));
  EXPECT_EQ(decide(seen, Policy{}, kRequest + seconds(9)).act, Act::kFinish);
}

// Looks until the command has ended. The clock of the command stands at `at`.
PolledCommand::Result result_of(PolledCommand& command, Time at) {
  for (int turn = 0; turn < 6000; ++turn) {
    if (auto result = command.look(at)) return *result;
    std::this_thread::sleep_for(milliseconds(2));
  }
  ADD_FAILURE() << "the command has not ended";
  return {};
}

TEST(PolledCommand, GivesExitCodeAndOutput) {
  PolledCommand command("printf 'a:1\\nb:2\\n'; exit 3", seconds(5));
  const auto result = result_of(command, kRequest);
  EXPECT_EQ(result.status, (ExitStatus{false, 3}));
  EXPECT_EQ(result.output, "a:1\nb:2\n");
  EXPECT_FALSE(result.timed_out);
}

TEST(PolledCommand, RunsAgainAfterItsIntervalAlone) {
  PolledCommand command("true", seconds(5));
  result_of(command, kRequest);
  EXPECT_EQ(command.next(), kRequest + seconds(5));
  EXPECT_FALSE(command.look(kRequest + milliseconds(4999)));
  EXPECT_EQ(command.next(), kRequest + seconds(5));
  EXPECT_FALSE(command.look(kRequest + seconds(5)));  // has begun
  EXPECT_EQ(command.next(), kRequest + seconds(5) + PolledCommand::kLimit);
}

TEST(PolledCommand, IsKilledAtItsLimitWithAllThatItStarted) {
  PolledCommand command("sleep 1000 & sleep 1000", seconds(5));
  EXPECT_FALSE(command.look(kRequest));
  EXPECT_FALSE(command.look(kRequest + PolledCommand::kLimit - milliseconds(1)));
  const auto result = command.look(kRequest + PolledCommand::kLimit);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->timed_out);
}

TEST(PolledCommand, DoesNotBlockOnMuchOutputAndKeepsItsStart) {
  PolledCommand command("head -c 1000000 /dev/zero | tr '\\0' x", seconds(5));
  const auto result = result_of(command, kRequest);
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(result.output, std::string(PolledCommand::kMaxOutput, 'x'));
}

TEST(PolledCommand, WithoutTextNeverRuns) {
  PolledCommand command("", seconds(5));
  EXPECT_FALSE(command.next());
  EXPECT_FALSE(command.look(kRequest + seconds(999)));
}

}  // namespace
}  // namespace weft::launch::internal
