// A job of one node, whose launcher decides by itself: its report has facts that agents lack.
#include <gtest/gtest.h>

#include <set>

#include "weft/launch/membership.h"

namespace weft::launch {
namespace membership_one_node_test {

using Phase = RankPhase;

// Three ranks that train.
class OneNodeTest : public testing::Test {
 protected:
  OneNodeTest() {
    membership_.formed = true;
    for (int rank = 0; rank < 3; ++rank) {
      membership_.ranks[rank] = {.member = true};
      node_.ranks[rank] = {.phase = Phase::kMember};
    }
    node_.slots = 3;
    node_.one_node = OneNode{.has_trained = true};
  }
  OneNode& own() { return *node_.one_node; }
  void end_rank(int rank, int code) { node_.ranks[rank] = {.phase = Phase::kLost, .code = code}; }
  void all_end(int code) {
    for (int rank = 0; rank < 3; ++rank) end_rank(rank, code);
  }
  Membership next() const { return next_membership(membership_, {node_}, policy_, true); }
  bool starts_again() const { return next().attempt > membership_.attempt; }

  Membership membership_;
  NodeReport node_;
  MembershipPolicy policy_{.max_ranks = 3, .max_replacements = 9};
};

TEST_F(OneNodeTest, ReplacesALostRankOnceAProcessCanBeStarted) {
  end_rank(1, 137);
  own().pauses = true;
  own().failed_starts = 1;
  EXPECT_EQ(next(), membership_) << "the others wait, and no replacement counts";
  own().pauses = false;
  EXPECT_TRUE(next().ranks.at(1).replaces);
  EXPECT_EQ(next().replacements, 1);
}

TEST_F(OneNodeTest, GoesOnWithFewerRanksWhileNoProcessCanBeStarted) {
  policy_.min_ranks = 2;
  end_rank(1, 137);
  own().pauses = true;
  EXPECT_EQ(next().gone, std::set<int>{1});
  EXPECT_EQ(next().end, "");
  EXPECT_EQ(next().replacements, 0);
  end_rank(2, 137);  // one rank is not enough
  EXPECT_EQ(next(), membership_);
}

TEST_F(OneNodeTest, GivesALostRankUpAfterTooManyStartsThatFailed) {
  end_rank(1, 137);
  own().pauses = true;
  own().failed_starts = kMaxFailedStarts - 1;
  EXPECT_EQ(next().end, "");
  own().failed_starts = kMaxFailedStarts;
  EXPECT_EQ(next().end, "rank 1 is lost; it cannot be replaced");
  own().pauses = false;
  EXPECT_EQ(next().end, "rank 1 is lost; it cannot be replaced");
}

TEST_F(OneNodeTest, DoesNotWaitForAReplacementThatItCannotHave) {
  own().pauses = true;
  end_rank(1, 137);
  node_.ranks[1].phase = Phase::kRefused;
  EXPECT_EQ(next().end, "rank 1 is lost; it cannot be replaced");
  end_rank(1, 137);
  membership_.never_joined = kMaxNeverJoined;
  EXPECT_EQ(next().end, "rank 1 is lost; it cannot be replaced");
  membership_.never_joined = 0;
  policy_.max_replacements = 0;
  EXPECT_EQ(next().end, "rank 1 is lost; it cannot be replaced");
}

// The launcher pauses before it asks, so it has counted the process when it ended.
TEST_F(OneNodeTest, CountsNoNewProcessTwiceThatEndedBeforeItJoined) {
  membership_.ranks[1] = {.replaces = true};
  membership_.never_joined = 1;
  end_rank(1, 1);
  EXPECT_TRUE(next().ranks.at(1).replaces);
  EXPECT_EQ(next().never_joined, 1);
  node_.one_node.reset();  // agents decide
  EXPECT_EQ(next().never_joined, 2);
}

TEST_F(OneNodeTest, StartsAllRanksAgainIfNoneIsLeftThatHasTheState) {
  all_end(137);
  own().failed_first = 1;
  const Membership again = next();
  EXPECT_EQ(again.attempt, 1);
  EXPECT_EQ(again.replacements, 1);
  ASSERT_EQ(again.ranks.size(), 3U);
  EXPECT_TRUE(again.ranks.at(0).first);
  own().has_trained = false;
  EXPECT_FALSE(starts_again());
}

TEST_F(OneNodeTest, StartsAllRanksAgainAlsoWhileANewProcessLoads) {
  membership_.ranks[0] = {.replaces = true};
  node_.ranks[0].phase = Phase::kWaiting;
  end_rank(1, 137);
  end_rank(2, 137);
  own().failed_first = 2;
  EXPECT_TRUE(starts_again());
}

TEST_F(OneNodeTest, StartsAllRanksAgainOnlyAsOftenAsAllowed) {
  all_end(137);
  own().failed_first = 0;
  membership_.restores = kMaxRestores - 1;
  EXPECT_TRUE(starts_again());
  membership_.restores = kMaxRestores;
  EXPECT_FALSE(starts_again());
  own().has_progressed = true;
  EXPECT_TRUE(starts_again());
  EXPECT_EQ(next().restores, 1);
  membership_.restores = 0;
  membership_.never_joined = kMaxNeverJoined;
  EXPECT_FALSE(starts_again());
  membership_.never_joined = 0;
  own().failed_starts = kMaxFailedStarts;
  EXPECT_FALSE(starts_again());
  own().failed_starts = 0;
  membership_.replacements = policy_.max_replacements;
  EXPECT_FALSE(starts_again());
}

TEST_F(OneNodeTest, StartsTheNumberOfRanksThatWasAskedFor) {
  membership_.wanted = {.serial = 1, .ranks = 2};  // the third rank had not left yet
  all_end(137);
  own().failed_first = 0;
  EXPECT_TRUE(starts_again());
  EXPECT_EQ(next().ranks.size(), 2U);
}

// On several nodes, nobody knows which rank failed first.
TEST_F(OneNodeTest, StartsAProgramAgainUnlessItFailedFirst) {
  all_end(137);
  end_rank(0, 1);
  own().failed_first = 1;
  EXPECT_TRUE(starts_again());
  own().failed_first = 0;
  EXPECT_FALSE(starts_again());
  node_.ranks[0] = {.phase = Phase::kLeft, .code = 203};  // it ended in another way
  EXPECT_FALSE(starts_again());
  own().failed_first = -1;
  EXPECT_FALSE(starts_again());
  all_end(137);
  end_rank(0, 1);
  node_.one_node.reset();
  membership_.run = "/run";
  EXPECT_FALSE(starts_again());
}

TEST_F(OneNodeTest, StartsAllRanksAgainAfterTheEndOfTheStore) {
  all_end(1);  // when they were told to stop
  own().store_lost = true;
  EXPECT_TRUE(starts_again());
  own().failed_first = 2;  // before the store ended
  EXPECT_FALSE(starts_again());
  end_rank(2, 137);
  EXPECT_TRUE(starts_again());
}

TEST_F(OneNodeTest, StartsAllRanksAgainWhenOneIsLostBeforeAllHaveMet) {
  for (auto& [rank, place] : membership_.ranks) place = {.first = true};
  for (auto& [rank, report] : node_.ranks) report.phase = Phase::kStarting;
  own().has_trained = false;
  EXPECT_EQ(next(), membership_);
  end_rank(1, 1);  // also a program that fails by itself
  own().failed_first = 1;
  EXPECT_TRUE(starts_again());
  policy_.max_replacements = 0;
  EXPECT_FALSE(starts_again());
  policy_.min_ranks = 2;
  EXPECT_TRUE(starts_again());
  membership_.restores = kMaxRestores;
  EXPECT_FALSE(starts_again());
}

}  // namespace membership_one_node_test
}  // namespace weft::launch
