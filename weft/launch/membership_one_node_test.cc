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
    node_.one_node = OneNode{};
  }
  OneNode& own() { return *node_.one_node; }
  void end_rank(int rank, int code) { node_.ranks[rank] = {.phase = Phase::kLost, .code = code}; }
  Membership next() const { return next_membership(membership_, {node_}, policy_, true); }

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

}  // namespace membership_one_node_test
}  // namespace weft::launch
