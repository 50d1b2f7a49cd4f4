// What the launcher decides if the machine has run out of processes or disk space, and if its own
// helper process ends.
#include <gtest/gtest.h>
#include <signal.h>

#include "weft/base/error.h"
#include "weft/launch/internal/restarts.h"
#include "weft/launch/supervision.h"
#include "weft/launch/testing/rank_ends.h"

namespace weft::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Situation lost_and_not_startable(int failed_starts) {
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt});
  seen.failed_starts = failed_starts;
  seen.last_end = kStart + seconds(1);
  return seen;
}

TEST(FailedStarts, AreTriedAgainForManySecondsAndCountNoReplacement) {
  Policy policy;
  policy.max_replacements = 1;
  const auto seen = lost_and_not_startable(1);
  const auto decision = decide(seen, policy, kStart + milliseconds(1100));
  EXPECT_EQ(decision.act, Act::kWait);
  EXPECT_EQ(decision.rank, 1) << "the others still wait for it";
  EXPECT_EQ(decision.until, kStart + milliseconds(1500));
  EXPECT_EQ(decide(seen, policy, kStart + milliseconds(1500)).act, Act::kReplace);
  EXPECT_EQ(decide(lost_and_not_startable(9), policy, kStart + milliseconds(2999)).act, Act::kWait);
  EXPECT_EQ(decide(lost_and_not_startable(9), policy, kStart + seconds(3)).act, Act::kReplace);
}

TEST(FailedStarts, EndTheJobOnlyAfterAboutAMinute) {
  Policy policy;
  policy.max_replacements = 1;
  const auto seen = lost_and_not_startable(kMaxFailedStarts);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(9)).act, Act::kTerminate);
}

TEST(FailedStarts, LetTheOthersGoOnIfFewerAreEnough) {
  Policy policy;
  policy.max_replacements = 1;
  policy.min_ranks = 2;
  const auto decision = decide(lost_and_not_startable(1), policy, kStart + milliseconds(1100));
  EXPECT_EQ(decision.act, Act::kGoOnWithout);
  EXPECT_EQ(decision.rank, 1);
}

TEST(StoreProcess, IsFollowedByAStartFromTheNewestCheckpointIfReplacementsAreLeft) {
  Policy policy;
  policy.max_replacements = 1;
  auto seen = situation({told(exited(143, seconds(2))), told(exited(143, seconds(2)))});
  seen.store_lost = true;
  seen.stop_sent = kStart + seconds(1);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kFinish) << "it never trained";
  seen.trained = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kRestore);
  seen.job.replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kFinish);
  policy.max_restarts = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kRestart);
}

TEST(FullDisk, IsNoReasonToTrainTheSameStepsAgain) {
  Policy policy;
  policy.max_replacements = 9;
  auto seen = situation({exited(203, seconds(2)), exited(203, seconds(2))});
  seen.trained = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kRestore);
  seen.unsaved = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kFinish);
  seen.ranks[0].reset();  // it fails a moment later
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kWait);
  seen.unsaved = false;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kReplace);
}

TEST(Restarts, OfAHelperAreTriedAgainIfThereIsNoProcess) {
  internal::Restarts restarts;
  const auto now = kStart + seconds(100);
  const auto none = [] { throw Error(Errc::kUnavailable, "cannot create a process"); };
  const auto again = restarts.try_start(now, none);
  ASSERT_TRUE(again);
  EXPECT_GT(*again, now);
  EXPECT_LE(*again, now + seconds(2));
  EXPECT_FALSE(restarts.try_start(*again, [] {}));
  EXPECT_THROW(
      restarts.try_start(now, [] { throw Error(Errc::kInvalidArgument, "no such program"); }),
      Error);
}

}  // namespace
}  // namespace weft::launch
