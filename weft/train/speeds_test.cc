#include "weft/train/internal/speeds.h"

#include <gtest/gtest.h>

#include "weft/comm/replicate.h"

namespace weft::train::internal {
namespace speeds_test {

using namespace std::chrono_literals;

TEST(Speeds, GiveProportionalSharesOnceTheyDifferByFivePercent) {
  comm::replicate(
      3,
      [](const Group& world) {
        Speeds speeds(Mesh(world, {{"dp", 0}}));
        speeds.add(100, 1.0);
        EXPECT_FALSE(speeds.rebalance()) << "all alike";
        std::vector<double> last;
        for (int look = 0; look < 12; ++look) {
          speeds.add(100, world.rank() == 2 ? 2.0 : 1.0);  // half as fast from now on
          if (const auto weights = speeds.rebalance()) last = *weights;
        }
        ASSERT_EQ(last.size(), 3u);
        EXPECT_NEAR(last[0], 0.4, 0.02);
        EXPECT_NEAR(last[2], 0.2, 0.02);
        EXPECT_EQ(last[0], last[1]);
        EXPECT_FALSE(speeds.rebalance()) << "nothing was measured since";
      },
      20s);
}

}  // namespace speeds_test
}  // namespace weft::train::internal
