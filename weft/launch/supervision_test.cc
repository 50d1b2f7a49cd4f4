#include "weft/launch/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "weft/launch/testing/rank_ends.h"

namespace weft::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;

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
  seen.kill_sent = kStart + seconds(45);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(54)).act, Act::kWait);
}

// Such as a process that waits for a device or a network file system.
TEST(Decide, GoesOnWithoutAKilledRankThatTheSystemDoesNotEnd) {
  auto seen = situation({exited(1, seconds(10)), std::nullopt});
  seen.stop_sent = kStart + seconds(15);
  seen.kill_sent = kStart + seconds(45);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(46)).until, kStart + seconds(55));
  const auto late = decide(seen, Policy{}, kStart + seconds(55));
  EXPECT_EQ(late.act, Act::kAbandon);
  EXPECT_EQ(late.rank, 1);
  seen.followed = Situation::Followed{.over = kStart + seconds(10)};
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(55)).act, Act::kAbandon);
  seen.followed.reset();
  seen.ranks[1] = told(killed(SIGKILL, seconds(55)));
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(55)).act, Act::kFinish);
}

Situation followed(std::vector<std::optional<RankEnd>> ranks, Situation::Followed membership) {
  Situation result = situation(std::move(ranks));
  result.followed = membership;
  return result;
}

TEST(DecideByMembership, LeavesLostRanksToTheMembership) {
  const auto seen = followed({std::nullopt, killed(SIGKILL, seconds(1))}, {});
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(99)).act, Act::kWait);
  // Also a node without ranks stays.
  EXPECT_EQ(decide(followed({}, {}), Policy{}, kStart + seconds(99)).act, Act::kWait);
}

TEST(DecideByMembership, EndsTheRanksAfterTheGraceTimeWhenTheJobEnds) {
  auto seen = followed({std::nullopt}, {.over = kStart + seconds(10)});
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).until, kStart + seconds(15));
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(15)).act, Act::kTerminate);
  seen.followed->stopped = true;
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(10)).act, Act::kTerminate);
  seen.stop_sent = kStart + seconds(10);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(39)).act, Act::kWait);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(40)).act, Act::kKill);
}

TEST(DecideByMembership, LetsRanksFinishAfterSuccessElsewhere) {
  const auto seen = followed({std::nullopt}, {.over = kStart, .done = true});
  const auto decision = decide(seen, Policy{}, kStart + seconds(999));
  EXPECT_EQ(decision.act, Act::kWait);
  EXPECT_FALSE(decision.until);
}

TEST(DecideByMembership, StaysForTheOtherNodesForAWhile) {
  auto seen = followed({exited(0, seconds(9))}, {.over = kStart + seconds(10), .done = true});
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).until, kStart + seconds(10) + kFarewell);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(10) + kFarewell).act, Act::kFinish);
  seen.followed->all_left = kStart + seconds(11);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).until, kStart + seconds(11) + kFarewell)
      << "another node may need the store of this one to learn it";
  seen.followed->all_know = true;
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(11)).act, Act::kFinish);
}

TEST(PhaseOf, SaysWhetherAnotherProcessCanTakeThePlaceOfARank) {
  EXPECT_EQ(phase_of(exited(0, seconds(1))), RankPhase::kDone);
  RankEnd left = exited(0, seconds(1));
  left.left = true;
  EXPECT_EQ(phase_of(left), RankPhase::kLeft);
  EXPECT_EQ(phase_of(killed(SIGKILL, seconds(1))), RankPhase::kLost);
  EXPECT_EQ(phase_of(exited(2, seconds(1))), RankPhase::kFailed);  // a wrong configuration
  RankEnd newcomer = exited(2, seconds(1));
  newcomer.joining = true;
  EXPECT_EQ(phase_of(newcomer), RankPhase::kRefused);
  EXPECT_EQ(phase_of(waited(Errc::kPeerLost, 1, seconds(1), {false, 1})), RankPhase::kFailed);
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
  seen.job.replacements = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(6)).act, Act::kTerminate);
}

TEST(Decide, ReplacesARankThatNeverMetTheOtherNodes) {
  Policy policy;
  policy.max_replacements = 1;
  auto seen = situation({waited(Errc::kPeerLost, 1, seconds(1), {false, 1})});
  seen.other_nodes = true;
  EXPECT_NE(decide(seen, policy, kStart + seconds(1)).act, Act::kReplace);
  seen.ranks[0]->unmet = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kReplace);
  seen.ranks[0]->told = true;
  EXPECT_NE(decide(seen, policy, kStart + seconds(1)).act, Act::kReplace);
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
  replaced(seen, 0);  // rank 0 was lost before, and its replacement waits for rank 1
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kTerminate);
  seen.other_nodes = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kReplace);
}

// The newcomers are ended with their attempt.
TEST(Decide, RestoresAtOnceWhenTheLastRankWithTheStateIsLost) {
  Policy policy;
  policy.max_replacements = 9;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(2)), std::nullopt});
  replaced(seen, 0);
  replaced(seen, 2);
  seen.trained = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kRestore);
  // Also before the next attempt has begun to train.
  seen.trained = false;
  seen.job.restores = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kRestore);
  seen.job.restores = kMaxRestores;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kTerminate);
}

TEST(Decide, StartsAllRanksAgainWhenOneIsLostBeforeAllHaveMet) {
  Policy policy;
  policy.max_replacements = 9;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  seen.meeting = {0};
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kRestore);
  // Rank 0 has noticed it first; or rank 1 was replaced before another one began to meet.
  seen.ranks[0] = waited(Errc::kPeerLost, 1, seconds(1), {false, 201});
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kRestore);
  auto meets = situation({std::nullopt, std::nullopt, std::nullopt});
  meets.meeting = {2};
  EXPECT_EQ(decide(meets, policy, kStart + seconds(1)).act, Act::kWait);
  replaced(meets, 1);
  EXPECT_EQ(decide(meets, policy, kStart + seconds(1)).act, Act::kRestore);
  // Not without an end, not without replacements, and not once all have met.
  seen.job.restores = kMaxRestores;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
  seen.job.restores = 0;
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(1)).act, Act::kWait);
  auto met = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  EXPECT_EQ(decide(met, policy, kStart + seconds(1)).act, Act::kReplace);
}

TEST(Decide, StartsNoRanksAgainBeforeAllHaveMetIfANewProcessIsAnotherProgram) {
  Policy policy;
  policy.max_replacements = 9;
  auto seen = situation({std::nullopt, exited(2, seconds(1))});
  seen.meeting = {0};
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  seen.ranks[1]->joining = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(6)).act, Act::kTerminate);
}

// The ranks of other nodes have the state.
TEST(Decide, ReplacesTheOnlyRankOfANodeWhileOtherNodesRun) {
  Policy policy;
  policy.max_replacements = 1;
  auto seen = situation({killed(SIGKILL, seconds(1))});
  seen.other_nodes = true;
  const auto decision = decide(seen, policy, kStart + seconds(1));
  EXPECT_EQ(decision.act, Act::kReplace);
  EXPECT_EQ(decision.rank, 0);
  seen.job.replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kFinish);
  seen.ranks[0] = exited(0, seconds(1));
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kFinish);
}

TEST(Decide, EndsACrashLoopOfReplacements) {
  Policy policy;
  policy.max_replacements = 99;
  auto seen = situation({std::nullopt, exited(1, seconds(2))});
  seen.job.never_joined = kMaxNeverJoined - 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kReplace);
  seen.job.never_joined = kMaxNeverJoined;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
}

TEST(Decide, GoesOnWithoutALostRankWhileEnoughAreLeft) {
  Policy policy;
  policy.min_ranks = 2;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  const auto decision = decide(seen, policy, kStart + seconds(1));
  EXPECT_EQ(decision.act, Act::kGoOnWithout);
  EXPECT_EQ(decision.rank, 1);
  done_without(seen, 1);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(99)).act, Act::kWait);
  seen.ranks[0] = exited(0, seconds(100));
  seen.ranks[2] = exited(0, seconds(100));
  EXPECT_EQ(decide(seen, policy, kStart + seconds(100)).act, Act::kFinish);
  EXPECT_FALSE(first_failure(seen));
  // One more is too many.
  auto two = situation({std::nullopt, seen.ranks[1], killed(SIGKILL, seconds(5))});
  done_without(two, 1);
  EXPECT_EQ(decide(two, policy, kStart + seconds(5)).act, Act::kWait);
  EXPECT_EQ(first_failure(two), 2);
}

// As on nodes that meet.
TEST(Decide, CountsARankThatLoadsInPlaceOfALostOneAsLeft) {
  Policy policy;
  policy.min_ranks = 2;
  policy.max_replacements = 1;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  replaced(seen, 2);
  seen.job.replacements = 1;
  const auto decision = decide(seen, policy, kStart + seconds(1));
  EXPECT_EQ(decision.act, Act::kGoOnWithout);
  EXPECT_EQ(decision.rank, 1);
  policy.min_ranks = 3;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
}

TEST(Decide, WaitsLongerAfterEachReplacementThatNeverJoined) {
  Policy policy;
  policy.max_replacements = 99;
  auto seen = situation({std::nullopt, exited(1, seconds(10))});
  seen.last_end = kStart + seconds(10);
  seen.job.never_joined = 2;
  const auto waits = decide(seen, policy, kStart + milliseconds(10'999));
  EXPECT_EQ(waits.act, Act::kWait);
  EXPECT_EQ(waits.until, kStart + seconds(11));
  EXPECT_EQ(waits.rank, 1);  // the others need not end
  EXPECT_EQ(decide(seen, policy, kStart + seconds(11)).act, Act::kReplace);
  // With fewer ranks allowed, the others do not wait.
  policy.min_ranks = 1;
  EXPECT_EQ(decide(seen, policy, kStart + milliseconds(10'999)).act, Act::kGoOnWithout);
}

TEST(NeedlessRanks, AreReplacementsThatTheGroupHasFormedWithout) {
  const auto with_replaced = [](const std::set<int>& lost) {
    auto seen = situation({std::nullopt, std::nullopt, std::nullopt, std::nullopt});
    for (const int local : lost) replaced(seen, local);
    return seen;
  };
  EXPECT_EQ(needless_ranks(with_replaced({1}), 4), (std::set<int>{})) << "it is one of the four";
  EXPECT_EQ(needless_ranks(with_replaced({1}), 3), (std::set<int>{1}));
  // One of the two is in the group, and will say so.
  EXPECT_EQ(needless_ranks(with_replaced({1, 2}), 3), (std::set<int>{}));
  EXPECT_EQ(needless_ranks(with_replaced({3}), 3), (std::set<int>{3}));
  EXPECT_EQ(needless_ranks(with_replaced({1, 3}), 3), (std::set<int>{3}));
  EXPECT_EQ(needless_ranks(with_replaced({1, 3}), 2), (std::set<int>{1, 3}));
}

TEST(Decide, DoesNotGrowWhenTheProgramEnds) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({exited(0, seconds(1)), std::nullopt});
  seen.job.wanted.ranks = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
}

TEST(Decide, DoesNotResizeDuringARecoveryOrWithAFixedNumber) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({std::nullopt, std::nullopt});
  seen.job.wanted.ranks = 4;
  replaced(seen, 1);
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  internal::join(seen, 1);
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
  seen.job.replacements = 1;
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
  for (int i = 0; i < kMaxRestores; ++i) {
    seen.trained = true;
    seen.step = 40;
    ASSERT_EQ(decide(seen, policy, kStart).act, Act::kRestore);
    seen = next_attempt(seen, Act::kRestore);
    EXPECT_FALSE(seen.trained);
    internal::begin_attempt(seen, 1);
    seen.ranks = {killed(SIGKILL, seconds(1))};
  }
  seen.trained = true;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kFinish);
  seen.step = 41;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kRestore);
  seen = next_attempt(seen, Act::kRestore);
  EXPECT_EQ(seen.job.restores, 1);
  EXPECT_EQ(seen.job.replacements, kMaxRestores + 1);
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
  EXPECT_EQ(decision.act, Act::kGoOnWithout);
  EXPECT_EQ(decision.rank, 1);
  policy.min_ranks = 0;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
  EXPECT_EQ(first_failure(seen), 1);
  policy.min_ranks = 2;
  seen.ranks[1]->joining = false;  // a rank of the job with a wrong configuration
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
}

TEST(FirstFailure, IsARankThatTheOthersDidWithoutOnlyIfTheOthersFailedBecauseOfIt) {
  auto lost = killed(SIGKILL, seconds(1));
  lost.done_without = true;
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

}  // namespace
}  // namespace weft::launch
