// decide() while the number of ranks changes: next_membership() with one node.
#include <gtest/gtest.h>
#include <signal.h>

#include "weft/launch/supervision.h"
#include "weft/launch/testing/rank_ends.h"

namespace weft::launch {
namespace {

using std::chrono::seconds;

TEST(Resize, GrowsToTheWantedNumberAndTellsTheRanksWhenTheNewOnesWait) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({std::nullopt, std::nullopt});
  seen.job.wanted.ranks = 3;
  const auto grow = decide(seen, policy, kStart);
  EXPECT_EQ(grow.act, Act::kGrow);
  EXPECT_EQ(grow.rank, 2);
  added(seen, 2);
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.newcomers[2] = RankPhase::kWaiting;
  const auto tell = decide(seen, policy, kStart);
  EXPECT_EQ(tell.act, Act::kAnnounce);
  EXPECT_EQ(tell.ranks, 3);
  internal::commit(seen, tell);
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  internal::join(seen, 2);
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
}

TEST(Resize, TakesThePlaceOfARankThatLeavesOnceItHasEnded) {
  Policy policy;
  policy.max_ranks = 3;
  auto seen = situation({std::nullopt, std::nullopt, std::nullopt});
  seen.job.wanted.ranks = 3;
  seen.job.ranks.erase(2);  // it leaves
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.ranks[2] = exited(0, seconds(1));
  seen.ranks[2]->left = true;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGrow);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).rank, 2);
}

TEST(Resize, EndsRanksThatHaveNotJoinedWhenTheOthersHaveFinished) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({exited(0, seconds(1)), std::nullopt});
  seen.job.wanted.ranks = 4;
  added(seen, 2, RankPhase::kWaiting);
  added(seen, 3);
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  seen.ranks[1] = exited(0, seconds(2));
  for (const int newcomer : {3, 2}) {
    const auto end = decide(seen, policy, kStart + seconds(2));
    EXPECT_EQ(end.act, Act::kDismiss);
    EXPECT_EQ(end.rank, newcomer);
    seen.dismissed.insert(newcomer);
  }
  EXPECT_EQ(decide(seen, policy, kStart + seconds(2)).act, Act::kWait);
  seen.newcomers.clear();
  for (const int newcomer : {2, 3}) {
    seen.ranks[static_cast<std::size_t>(newcomer)] = killed(SIGKILL, seconds(3));
    done_without(seen, newcomer);
  }
  EXPECT_EQ(decide(seen, policy, kStart + seconds(3)).act, Act::kFinish);
  EXPECT_FALSE(first_failure(seen));
}

TEST(Resize, EndsReplacementsThatHaveNotJoinedWhenTheOthersHaveFinished) {
  auto seen = situation({exited(0, seconds(1)), std::nullopt});
  replaced(seen, 1);
  const auto end = decide(seen, Policy{}, kStart + seconds(1));
  EXPECT_EQ(end.act, Act::kDismiss);
  EXPECT_EQ(end.rank, 1);
  seen.dismissed = {1};
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(1)).act, Act::kWait);
  seen.newcomers.clear();
  seen.ranks[1] = killed(SIGKILL, seconds(2));
  seen.ranks[1]->done_without = true;
  EXPECT_EQ(decide(seen, {.max_restarts = 1}, kStart + seconds(2)).act, Act::kFinish);
  EXPECT_FALSE(first_failure(seen));
}

TEST(Resize, EndsRanksOfANodeThatHaveNotJoinedWhenTheJobIsDone) {
  auto seen = situation({exited(0, seconds(1)), std::nullopt});
  seen.followed = Situation::Followed{};
  replaced(seen, 1);
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(1)).act, Act::kWait);
  seen.followed->over = kStart + seconds(1);
  seen.followed->done = true;
  const auto end = decide(seen, Policy{}, kStart + seconds(1));
  EXPECT_EQ(end.act, Act::kDismiss);
  EXPECT_EQ(end.rank, 1);
  seen.dismissed = {1};
  EXPECT_EQ(decide(seen, Policy{}, kStart + seconds(1)).act, Act::kWait);
}

TEST(Resize, ShrinksToTheWantedNumberAndUsesThePlacesAgain) {
  Policy policy;
  policy.max_ranks = 8;
  auto seen = situation({std::nullopt, std::nullopt, std::nullopt});
  seen.job.wanted.ranks = 2;
  const auto tell = decide(seen, policy, kStart);
  EXPECT_EQ(tell.act, Act::kAnnounce);
  EXPECT_EQ(tell.ranks, 2);
  internal::commit(seen, tell);
  seen.job.ranks.erase(1);  // it leaves
  seen.ranks[1] = exited(0, seconds(1));
  seen.ranks[1]->left = true;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.job.wanted.ranks = 3;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kGrow);
  EXPECT_EQ(decide(seen, policy, kStart).rank, 1);
}

TEST(Resize, KeepsToMultiplesThatTheProgramCanUse) {
  Policy policy;
  policy.max_ranks = 8;
  policy.min_ranks = 2;
  auto seen = situation({std::nullopt, std::nullopt});
  seen.job.usable.multiple = 2;
  seen.job.wanted.ranks = 3;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait) << "a third rank would be of no use";
  seen.job.wanted.ranks = 4;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kGrow);
  added(seen, 2, RankPhase::kWaiting);
  added(seen, 3);
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.newcomers[3] = RankPhase::kWaiting;
  EXPECT_EQ(decide(seen, policy, kStart).ranks, 4);
  // Three of four are left: one of them will leave.
  seen = situation({std::nullopt, killed(SIGKILL, seconds(1)), std::nullopt, std::nullopt});
  seen.job.usable.multiple = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGoOnWithout);
  policy.min_ranks = 3;
  EXPECT_NE(decide(seen, policy, kStart + seconds(1)).act, Act::kGoOnWithout);
}

// With train.reproducible and four micro-shards.
TEST(Resize, KeepsToNumbersThatDivideTheMicroShards) {
  Policy policy;
  policy.max_ranks = 8;
  policy.min_ranks = 2;
  auto seen = situation({std::nullopt, std::nullopt, std::nullopt, std::nullopt});
  seen.job.usable.shards = 4;
  seen.job.wanted.ranks = 8;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait) << "four are the most";
  seen.job.wanted.ranks = 3;
  EXPECT_EQ(decide(seen, policy, kStart).ranks, 2);
  seen = situation({std::nullopt, std::nullopt, std::nullopt});
  seen.job.usable.shards = 4;
  seen.job.wanted.ranks = 4;
  seen.ranks[1] = killed(SIGKILL, seconds(1));
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGoOnWithout);
}

TEST(Resize, HasNoMoreReplicasThanABatchHasSamples) {
  Policy policy;
  policy.max_ranks = 8;
  policy.min_ranks = 2;
  auto seen = situation({std::nullopt, std::nullopt});
  seen.job.usable.replicas = 2;
  seen.job.wanted.ranks = 8;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kWait);
  seen.job.usable.replicas = 3;
  EXPECT_EQ(decide(seen, policy, kStart).act, Act::kGrow);
}

TEST(Resize, GrowsAgainAfterALossOnlyWhileReplacementsAreLeft) {
  Policy policy;
  policy.max_ranks = 8;
  policy.min_ranks = 1;
  auto seen = situation({std::nullopt, killed(SIGKILL, seconds(1))});
  done_without(seen, 1);
  seen.job.wanted.ranks = 2;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  policy.max_replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGrow);
  EXPECT_TRUE(decide(seen, policy, kStart + seconds(1)).counts);
  seen.job.replacements = 1;
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kWait);
  seen.job.wanted.serial = 1;  // somebody asks for it
  EXPECT_EQ(decide(seen, policy, kStart + seconds(1)).act, Act::kGrow);
  EXPECT_FALSE(decide(seen, policy, kStart + seconds(1)).counts);
}

}  // namespace
}  // namespace weft::launch
