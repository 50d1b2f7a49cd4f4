#include "weft/launch/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "weft/launch/internal/report.h"

namespace weft::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;

const Time kStart{};
RankEnd exited(int code, milliseconds at) { return {{false, code}, kStart + at}; }
RankEnd killed(int signal, milliseconds at) { return {{true, signal}, kStart + at}; }
// A rank that ended because of an error of weft: it waited for `peer`.
RankEnd waited(Errc code, int peer, milliseconds at, ExitStatus status) {
  return {status, kStart + at, Cause{std::string(to_string(code)) + " text", code, peer}};
}
RankEnd told(RankEnd end) {
  end.told = true;
  return end;
}

Situation situation(std::vector<std::optional<RankEnd>> ranks) {
  Situation result;
  result.ranks = std::move(ranks);
  return result;
}

TEST(Decide, WaitsWithoutALimitWhileAllRanksRun) {
  const auto decision =
      decide(situation({std::nullopt, exited(0, seconds(1))}), Policy{}, kStart + seconds(999));
  EXPECT_EQ(decision.act, Act::kWait);
  EXPECT_FALSE(decision.until);
}

TEST(Decide, TerminatesSurvivorsAfterTheGraceTime) {
  const auto seen = situation({std::nullopt, killed(SIGKILL, seconds(10))});
  const auto before = decide(seen, Policy{}, kStart + milliseconds(14999));
  EXPECT_EQ(before.act, Act::kWait);
  EXPECT_EQ(before.until, kStart + seconds(15));
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(15)).act, Act::kTerminate);
}

TEST(Decide, KillsTheRemainingRanksOnceAtTheShutdownTimeout) {
  auto seen = situation({std::nullopt, exited(1, seconds(10))});
  seen.stop_sent = kStart + seconds(15);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(44)).until, kStart + seconds(45));
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(45)).act, Act::kKill);
  seen.kill_sent = true;
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(99)).act, Act::kWait);
}

Situation followed(std::vector<std::optional<RankEnd>> ranks, Situation::Followed plan) {
  Situation result = situation(std::move(ranks));
  result.plan = plan;
  return result;
}

TEST(DecideByPlan, LeavesLostRanksToThePlan) {
  const auto seen = followed({std::nullopt, killed(SIGKILL, seconds(1))}, {});
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(99)).act, Act::kWait);
  // Also a node without ranks stays.
  EXPECT_EQ(decide(followed({}, {}), Policy{}, kStart + seconds(99)).act, Act::kWait);
}

TEST(DecideByPlan, EndsTheRanksAfterTheGraceTimeWhenTheJobEnds) {
  auto seen = followed({std::nullopt}, {.over = kStart + seconds(10)});
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).until, kStart + seconds(15));
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(15)).act, Act::kTerminate);
  seen.plan->stopped = true;
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(10)).act, Act::kTerminate);
  seen.stop_sent = kStart + seconds(10);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(39)).act, Act::kWait);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(40)).act, Act::kKill);
}

TEST(DecideByPlan, LetsRanksFinishAfterSuccessElsewhere) {
  const auto seen = followed({std::nullopt}, {.over = kStart, .done = true});
  const auto decision = decide(seen, Policy{}, kStart + seconds(999));
  EXPECT_EQ(decision.act, Act::kWait);
  EXPECT_FALSE(decision.until);
}

TEST(DecideByPlan, StaysForTheOtherNodesForAWhile) {
  auto seen = followed({exited(0, seconds(9))}, {.over = kStart + seconds(10), .done = true});
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).until, kStart + seconds(10) + kFarewell);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(10) + kFarewell).act, Act::kFinish);
  seen.plan->all_left = true;
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).act, Act::kFinish);
}

TEST(KindOf, SaysWhetherAnotherProcessCanTakeThePlaceOfARank) {
  EXPECT_EQ(kind_of(exited(0, seconds(1))), EndKind::kDone);
  RankEnd left = exited(0, seconds(1));
  left.left = true;
  EXPECT_EQ(kind_of(left), EndKind::kLeft);
  EXPECT_EQ(kind_of(killed(SIGKILL, seconds(1))), EndKind::kLost);
  EXPECT_EQ(kind_of(exited(2, seconds(1))), EndKind::kFailed);  // a wrong configuration
  RankEnd newcomer = exited(2, seconds(1));
  newcomer.joining = true;
  EXPECT_EQ(kind_of(newcomer), EndKind::kRefused);
  EXPECT_EQ(kind_of(waited(Errc::kPeerLost, 1, seconds(1), {false, 1})), EndKind::kFailed);
}

TEST(Decide, KillsAtOnceOnASecondSignal) {
  auto seen = situation({std::nullopt});
  seen.stop_sent = kStart;
  seen.stop_signals = 1;
  EXPECT_EQ(decide(seen, Policy{}, kStart).act, Act::kWait);
  seen.stop_signals = 2;
  EXPECT_EQ(decide(seen, Policy{}, kStart).act, Act::kKill);
}

TEST(Decide, TerminatesWhenTheStoreProcessHasEnded) {
  auto seen = situation({std::nullopt});
  seen.store_lost = true;
  EXPECT_EQ(decide(seen, Policy{}, kStart).act, Act::kTerminate);
}

TEST(Decide, ReplacesALostRankUpToTheLimit) {
  Policy policy;
  policy.max_replacements = 2;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  const auto decision = decide(seen, policy, kStart + seconds(1));
  EXPECT_EQ(decision.act, Act::kReplace);
  EXPECT_EQ(decision.rank, 1);
  seen.replacements = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(6)).act, Act::kTerminate);
}

TEST(Decide, DoesNotReplaceARankThatFollowedAnotherStoppedOnRequestOrHasAWrongConfiguration) {
  Policy policy;
  policy.max_replacements = 9;
  for (const RankEnd& end :
       {waited(Errc::kPeerLost, 0, seconds(1), {false, 201}), exited(2, seconds(1)),
        waited(Errc::kBadConfig, -1, seconds(1), {true, SIGABRT}), exited(0, seconds(1)),
        exited(128 + SIGTERM, seconds(1)), exited(128 + SIGINT, seconds(1))}) {
    EXPECT_EQ(decide(situation({std::nullopt, end}), policy, kStart + seconds(1)).act, Act::kWait);
  }
  auto stopping = situation({std::nullopt, killed(SIGTERM, seconds(1))});
  stopping.stop_sent = kStart;
  EXPECT_EQ(decide(stopping, policy, kStart + seconds(1)).act, Act::kWait);
}

// Its error file still names the rank that was lost before it.
TEST(Decide, ReplacesARankThatIsKilledWhileItRecovers) {
  Policy policy;
  policy.max_replacements = 9;
  const auto recovering = waited(Errc::kPeerLost, 0, seconds(1), {true, SIGKILL});
  EXPECT_EQ(decide(situation({std::nullopt, recovering}), policy, kStart + seconds(1)).act,
            Act::kReplace);
  EXPECT_TRUE(is_consequence(waited(Errc::kPeerLost, 0, seconds(1), {true, SIGABRT})));
}

TEST(Decide, EndsWhenNoRankIsLeftThatHasTheState) {
  Policy policy;
  policy.max_replacements = 9;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(2))});
  seen.joining = {0};  // rank 0 was lost before, and its replacement waits for rank 1
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kTerminate);
  seen.other_nodes = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kReplace);
}

TEST(Decide, EndsACrashLoopOfReplacements) {
  Policy policy;
  policy.max_replacements = 99;
  auto seen = situation({std::nullopt, exited(1, seconds(2))});
  seen.never_joined = kMostNeverJoined - 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kReplace);
  seen.never_joined = kMostNeverJoined;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
}

TEST(Decide, GoesOnWithoutALostRankWhileEnoughAreLeft) {
  Policy policy;
  policy.min_ranks = 2;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  const auto decision = decide(seen, policy, kStart + seconds(1));
  EXPECT_EQ(decision.act, Act::kLetGo);
  EXPECT_EQ(decision.rank, 1);
  seen.ranks[1]->let_go = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(99)).act, Act::kWait);
  seen.ranks[0] = exited(0, seconds(100));
  seen.ranks[2] = exited(0, seconds(100));
  EXPECT_EQ(decide(seen, policy, kStart + seconds(100)).act, Act::kFinish);
  EXPECT_FALSE(first_failure(seen));
  // One more is too many.
  auto two = situation({std::nullopt, seen.ranks[1], killed(SIGKILL, seconds(5))});
  EXPECT_EQ(decide(two, policy, kStart + seconds(5)).act, Act::kWait);
  EXPECT_EQ(first_failure(two), 2);
}

TEST(Decide, WaitsLongerAfterEachReplacementThatNeverJoined) {
  Policy policy;
  policy.max_replacements = 99;
  auto seen = situation({std::nullopt, exited(1, seconds(10))});
  seen.last_end = kStart + seconds(10);
  seen.never_joined = 2;
  const auto waits = decide(seen, policy, kStart + milliseconds(10'999));
  EXPECT_EQ(waits.act, Act::kWait);
  EXPECT_EQ(waits.until, kStart + seconds(11));
  EXPECT_EQ(decide(seen, policy, kStart + seconds(11)).act, Act::kReplace);
  // With fewer ranks allowed, the others do not wait.
  policy.min_ranks = 1;
  EXPECT_EQ(decide(seen, policy, kStart + milliseconds(10'999)).act, Act::kLetGo);
}

TEST(Decide, GrowsToTheWantedNumberAndTellsTheRanksWhenTheNewOnesWait) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({std::nullopt, std::nullopt});
  seen.wanted = 3;
  const auto grow = decide(seen, policy, kStart);
  EXPECT_EQ(grow.act, Act::kGrow);
  EXPECT_EQ(grow.rank, 2);
  seen.ranks.emplace_back();
  seen.growing = {2};
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.growing.clear();
  seen.waiting = {2};
  const auto tell = decide(seen, policy, kStart);
  EXPECT_EQ(tell.act, Act::kAnnounce);
  EXPECT_EQ(tell.ranks, 3);
  seen.announced = 3;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.waiting.clear();  // it has joined
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
}

TEST(Decide, ShrinksToTheWantedNumberAndUsesThePlacesAgain) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({std::nullopt, std::nullopt, std::nullopt});
  seen.wanted = 2;
  const auto tell = decide(seen, policy, kStart);
  EXPECT_EQ(tell.act, Act::kAnnounce);
  EXPECT_EQ(tell.ranks, 2);
  seen.announced = 2;
  seen.ranks[1] = exited(0, seconds(1));
  seen.ranks[1]->left = true;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.wanted = 3;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kGrow);
  EXPECT_EQ(decide(seen, policy, kStart).rank, 1);
}

TEST(Decide, GrowsAgainAfterALossOnlyWhileReplacementsAreLeft) {
  Policy policy;
  policy.max_ranks = 8;
  policy.min_ranks = 1;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1))});
  seen.ranks[1]->let_go = true;
  seen.wanted = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  policy.max_replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGrow);
  seen.replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  seen.requested = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGrow);
}

TEST(Decide, DoesNotGrowWhenTheProgramEnds) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({exited(0, seconds(1)), std::nullopt});
  seen.wanted = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
}

TEST(Decide, DoesNotResizeDuringARecoveryOrWithAFixedNumber) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({std::nullopt, std::nullopt});
  seen.wanted = 4;
  seen.joining = {1};
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.joining.clear();
  policy.max_ranks = 0;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
}

TEST(Decide, RestoresFromACheckpointWhenAllRanksWereLost) {
  Policy policy;
  policy.max_replacements = 1;
  auto seen = situation({killed(SIGKILL, seconds(1)), killed(SIGKILL, seconds(1))});
  seen.trained = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kRestore);
  // Not a job that never trained, one whose configuration is wrong, or one without a replacement.
  seen.trained = false;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kFinish);
  seen.trained = true;
  seen.replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kFinish);
  for (const int code : {1, 2, 65}) {
    auto wrong = situation({exited(code, seconds(1)), exited(code, seconds(1))});
    wrong.trained = true;
    EXPECT_EQ(decide(wrong, policy, kStart + seconds(1)).act, Act::kFinish);
  }
}

TEST(NextAttempt, CountsRestoresInARowWithoutProgress) {
  Policy policy;
  policy.max_replacements = 99;
  auto seen = situation({killed(SIGKILL, seconds(1))});
  for (int i = 0; i < kMostRestores; ++i) {
    seen.trained = true;
    seen.step = 40;
    ASSERT_EQ(decide(seen, policy, kStart).act, Act::kRestore);
    seen = next_attempt(seen, Act::kRestore);
    EXPECT_FALSE(seen.trained);
    seen.ranks = {killed(SIGKILL, seconds(1))};
  }
  seen.trained = true;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kFinish);
  seen.step = 41;
  seen = next_attempt(seen, Act::kRestore);
  EXPECT_EQ(seen.restores, 1);
  EXPECT_EQ(seen.replacements, kMostRestores + 1);
}

// The others can do without a replacement that is another program, if they may become fewer.
TEST(Decide, LetsAReplacementGoThatTheJobHasRefused) {
  Policy policy;
  policy.max_replacements = 9;
  policy.min_ranks = 2;
  auto refused = exited(2, seconds(1));
  refused.joining = true;
  auto seen = situation({std::nullopt, refused, std::nullopt});
  const auto decision = decide(seen, policy, kStart + seconds(1));
  EXPECT_EQ(decision.act, Act::kLetGo);
  EXPECT_EQ(decision.rank, 1);
  policy.min_ranks = 0;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
  EXPECT_EQ(first_failure(seen), 1);
  policy.min_ranks = 2;
  seen.ranks[1]->joining = false;  // a rank of the job with a wrong configuration
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
}

TEST(FirstFailure, IsARankThatWasLetGoOnlyIfTheOthersFailedBecauseOfIt) {
  auto lost = killed(SIGKILL, seconds(1));
  lost.let_go = true;
  EXPECT_EQ(first_failure(situation({lost, exited(3, seconds(50))})), 1);
  EXPECT_EQ(first_failure(situation({lost, waited(Errc::kPeerLost, 0, seconds(50), {false, 201})})),
            0);
}

TEST(Decide, RestartsOnlyAfterAllHaveEndedAndUpToTheLimit) {
  Policy policy;
  policy.max_restarts = 2;
  auto seen = situation({exited(1, seconds(1)), std::nullopt});
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  seen.ranks[1] = exited(201, seconds(2));
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kRestart);
  seen.restarts = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kFinish);
}

TEST(Decide, DoesNotRestartAfterSuccessOrStop) {
  Policy policy;
  policy.max_restarts = 2;
  EXPECT_EQ(decide(situation({exited(0, seconds(1))}), policy, kStart).act, Act::kFinish);
  auto stopped = situation({killed(SIGINT, seconds(1))});
  stopped.stop_signals = 1;
  EXPECT_EQ(decide(stopped, policy, kStart).act, Act::kFinish);
}

TEST(FirstFailure, IsTheEarliest) {
  EXPECT_EQ(first_failure(situation({exited(1, seconds(2)), exited(3, seconds(1)),
                                     exited(0, seconds(0)), std::nullopt})),
            1);
  EXPECT_EQ(first_failure(situation({exited(0, seconds(0)), std::nullopt})), std::nullopt);
}

TEST(FirstFailure, IsNotARankThatOnlyLostItsPeer) {
  EXPECT_EQ(first_failure(situation(
                {exited(201, seconds(1)), exited(202, seconds(1)), exited(3, seconds(2))})),
            2);
  EXPECT_EQ(first_failure(situation({exited(202, seconds(2)), exited(201, seconds(1))})), 1);
}

TEST(FirstFailure, IsNotARankThatWasToldToStop) {
  auto seen = situation({killed(SIGTERM, seconds(6)), exited(201, seconds(7))});
  seen.ranks[0]->told = true;
  EXPECT_EQ(first_failure(seen), 1);
}

TEST(FirstFailure, IsTheKilledOneOfTwoSimultaneousFailures) {
  EXPECT_EQ(first_failure(situation({exited(1, seconds(1)), killed(SIGKILL, seconds(1))})), 1);
}

TEST(FirstFailure, IsNotARankThatAbortedOnAnErrorThatAnotherRankCaused) {
  const ExitStatus abort{true, SIGABRT};
  EXPECT_EQ(first_failure(
                situation({waited(Errc::kPeerLost, 1, seconds(1), abort), exited(3, seconds(2))})),
            1);
}

TEST(Blame, IsTheRankThatFailedByItself) {
  const auto found = blame(situation({exited(201, seconds(1)), exited(3, seconds(2))}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kFailed);
  EXPECT_EQ(found->rank, 1);
  EXPECT_FALSE(blame(situation({exited(0, seconds(1)), std::nullopt})));
}

TEST(Blame, FollowsWhoWaitedForWhomToItsEnd) {
  // 4 waits for 6, 6 for 5; 5 does nothing and is told to stop.
  auto seen = situation({waited(Errc::kTimeout, 6, seconds(1), {false, 200}),
                         told(killed(SIGTERM, seconds(8))),
                         waited(Errc::kTimeout, 5, seconds(2), {false, 200})});
  seen.first_rank = 4;
  const auto found = blame(seen);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kSilent);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->waiting, 2);
  internal::Failure failure;
  failure.situation = seen;
  EXPECT_THAT(internal::failure_report(failure),
              EndsWith("weft: rank 5 did not answer; rank 6 waited for it: Timeout text\n"));
}

TEST(Blame, IsTheRankThatASignalHasStopped) {
  auto seen = situation({waited(Errc::kTimeout, 1, seconds(1), {false, 200}),
                         waited(Errc::kAborted, 0, seconds(1), {false, 202}),
                         told(killed(SIGTERM, seconds(8)))});
  seen.stopped = {2};
  const auto found = blame(seen);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kStopped);
  EXPECT_EQ(found->rank, 2);
  internal::Failure failure;
  failure.situation = seen;
  EXPECT_THAT(internal::failure_report(failure),
              EndsWith("weft: rank 2 was stopped by a signal, such as SIGSTOP; rank 0 waited for "
                       "it: Timeout text\n"));
}

TEST(Blame, IsTheRankThatLeftEarly) {
  const auto found = blame(
      situation({waited(Errc::kPeerLost, 1, seconds(2), {false, 201}), exited(0, seconds(1))}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kLeft);
  EXPECT_EQ(found->rank, 1);
}

TEST(Blame, EndsInACycleWithTheFirstFailure) {
  const auto found = blame(situation({waited(Errc::kTimeout, 1, seconds(2), {false, 200}),
                                      waited(Errc::kTimeout, 0, seconds(1), {false, 200})}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kFailed);
  EXPECT_EQ(found->rank, 1);
}

TEST(Blame, MayBeARankOfAnotherNode) {
  auto seen = situation({waited(Errc::kTimeout, 7, seconds(2), {false, 200})});
  const auto found = blame(seen);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kSilent);
  EXPECT_EQ(found->rank, 7);
}

TEST(FailureReport, EndsWithTheFirstFailedRankItsCauseAndItsLog) {
  internal::Failure failure;
  failure.situation = situation({exited(201, seconds(2)), exited(3, seconds(1))});
  failure.situation.first_rank = 4;
  failure.situation.ranks[1]->cause = {"no such file"};
  failure.last_lines = {"one", "two"};
  failure.log = "logs/1/stderr.log";
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 4 ended as a consequence: exit code 201 (weft: PeerLost)\n"
            "weft: last lines of rank 5 on stderr:\n"
            "    one\n"
            "    two\n"
            "weft: rank 5 failed first: exit code 3: no such file (log: logs/1/stderr.log)\n");
}

TEST(FailureReport, ReportsTheSameErrorOfSeveralRanksOnce) {
  internal::Failure failure;
  failure.situation =
      situation({exited(2, seconds(1)), exited(2, seconds(2)), exited(202, seconds(2)),
                 exited(202, seconds(3)), exited(2, seconds(3)), exited(2, seconds(4))});
  const auto aborted = [](int rank) {
    return "Aborted: all_reduce, rank " + std::to_string(rank) + ": rank 0 has left";
  };
  const std::string causes[] = {"no data on rank 0", "no data on rank 1", aborted(2),
                                aborted(3),          "another mistake",   "no data on rank 5"};
  for (std::size_t i = 0; i < 6; ++i) failure.situation.ranks[i]->cause = {causes[i]};
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 4 failed later: exit code 2: another mistake\n"
            "weft: ranks 2 and 3 ended as a consequence: exit code 202 (weft: Aborted): Aborted: "
            "all_reduce, rank 2: rank 0 has left\n"
            "weft: ranks 0, 1 and 5 failed: exit code 2: no data on rank 0\n");
}

TEST(FailureReport, ReportsAnErrorThatNamesARankOnce) {
  internal::Failure failure;
  auto end = exited(2, seconds(1));
  end.cause = {"not saved: rank 0: disk full"};
  failure.situation = situation({end, end});
  EXPECT_EQ(internal::failure_report(failure),
            "weft: ranks 0 and 1 failed: exit code 2: not saved: rank 0: disk full\n");
}

TEST(FailureReport, PrintsManyRanksAsARange) {
  internal::Failure failure;
  auto end = exited(2, seconds(1));
  end.cause = {"no data"};
  failure.situation.ranks.assign(16, end);
  EXPECT_EQ(internal::failure_report(failure),
            "weft: ranks 0 to 15 failed: exit code 2: no data\n");
}

TEST(FailureReport, ExplainsAKill) {
  internal::Failure failure;
  failure.situation = situation({killed(SIGKILL, seconds(1))});
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 0 failed first: SIGKILL (signal 9): killed by another process or the "
            "kernel; check for out of memory (dmesg)\n");
  failure.out_of_memory = true;
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 0 failed first: SIGKILL (signal 9): the kernel killed it because memory "
            "ran out; use a smaller batch, fewer ranks or a "
            "higher memory limit\n");
}

TEST(FailureReport, ReportsThatItWasStopped) {
  internal::Failure failure;
  failure.situation = situation({killed(SIGINT, seconds(1))});
  failure.situation.ranks[0]->told = true;
  failure.stop_signal = SIGINT;
  EXPECT_EQ(internal::failure_report(failure),
            "weft: stopped by SIGINT; rank 0 ended first: SIGINT (signal 2)\n");
}

}  // namespace
}  // namespace weft::launch
