#include "weft/rank_link/notices.h"

#include <gtest/gtest.h>

namespace weft::rank_link {
namespace {

using Ranks = std::vector<int>;

class NoticesTest : public testing::Test {
 protected:
  std::pair<Link, Link> ends_ = Link::make();
  Link& launcher_ = ends_.first;
  Notices news_{&ends_.second};
};

TEST_F(NoticesTest, TheLatestNumberOfRanksCounts) {
  EXPECT_EQ(news_.wanted(), std::pair(0, Ranks{}));
  launcher_.tell("ranks", "4 2 3");
  launcher_.tell("ranks", "6 4 5");
  EXPECT_EQ(news_.wanted(), std::pair(6, (Ranks{4, 5})));
  launcher_.tell("ranks", "5");
  EXPECT_EQ(news_.wanted(), std::pair(5, Ranks{}));
}

TEST_F(NoticesTest, AGroupHearsOfLossesThatWereToldSinceItWasMade) {
  launcher_.tell("lost", "2 3");
  EXPECT_EQ(news_.lost_since(0), (Ranks{2, 3}));
  const auto before = news_.losses();
  EXPECT_EQ(before, 2U);
  EXPECT_EQ(news_.lost_since(before), Ranks{});
  launcher_.tell("lost", "2");  // the one that replaced it
  EXPECT_EQ(news_.lost_since(before), Ranks{2});
  EXPECT_EQ(news_.lost_since(before), Ranks{2});
}

TEST_F(NoticesTest, OtherTextsAreNoNotices) {
  launcher_.tell("become", "RANK=2");
  launcher_.tell("lost", "all");
  launcher_.tell("lost");
  EXPECT_EQ(news_.losses(), 0U);
  EXPECT_EQ(news_.wanted(), std::pair(0, Ranks{}));
}

TEST(NoticesWithoutALauncher, AreNone) {
  Notices none(nullptr);
  EXPECT_EQ(none.losses(), 0U);
  EXPECT_EQ(none.wanted().first, 0);
}

}  // namespace
}  // namespace weft::rank_link
