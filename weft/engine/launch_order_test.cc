#include "weft/engine/internal/launch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::engine::internal {
namespace launch_order_test {

using testing::ElementsAre;

// Four layers with one bucket each. The last layer's gradient is ready first, and forward needs the
// first layer's weights first. Numbers are computed by hand.
std::vector<TimedBucket> four_layers(double transfer) {
  //        ready, needed
  return {{1, 4 + 3, transfer}, {2, 4 + 2, transfer}, {3, 4 + 1, transfer}, {4, 4 + 0, transfer}};
}

TEST(OrderLaunches, KeepsTheOrderOfBackwardIfTheLinkIsFastEnough) {
  const auto launches = order_launches(four_layers(0.5), 4, true);
  EXPECT_THAT(launches.order, ElementsAre(0, 1, 2, 3));
  EXPECT_DOUBLE_EQ(launches.exposed, 0.5);  // the first layer's own transfer
}

TEST(OrderLaunches, LetsFrontLayersOvertakeIfTheLinkIsTheBottleneck) {
  // 0 leaves at 1 and is there at 4; then 3, which is needed at once (7, three late), 2 (10; needed
  // at 8 by then) and 1.
  const auto launches = order_launches(four_layers(3), 4, true);
  EXPECT_THAT(launches.order, ElementsAre(0, 3, 2, 1));
  // Buckets arrive at 4, 7, 10, 13 and are needed at 7, 4, 5, 6, so the worst is 7 late. In the
  // order of backward, the first layer alone would be 9 late.
  EXPECT_DOUBLE_EQ(launches.exposed, 7);
}

TEST(OrderLaunches, CountsAllTransfersAfterBackwardIfStepWaits) {
  EXPECT_DOUBLE_EQ(order_launches(four_layers(3), 4, false).exposed, 1 + 4 * 3 - 4);
  EXPECT_DOUBLE_EQ(order_launches({{1, 9, 1}}, 4, false).exposed, 0);
}

TEST(OrderLaunches, KeepsTheLinkBusyWhileAnyGradientIsReady) {
  const auto launches = order_launches({{5, 10, 1}, {0, 20, 1}, {0, 15, 1}}, 5, true);
  EXPECT_THAT(launches.order, ElementsAre(2, 1, 0));
}

TEST(CargoOf, TakesTheLatestGradientAndTheEarliestUseOfABucket) {
  const StepTimes times{{0.3, 0.2, 0.1}, 0.4, {0.01, 0.02, 0.03}};
  const auto timed = timed_buckets({{2, 1}, {0}}, {1000, 2000, 3000}, times, {1e-4, 1e-6});
  ASSERT_EQ(timed.size(), 2u);
  EXPECT_DOUBLE_EQ(timed[0].ready, 0.2);
  EXPECT_DOUBLE_EQ(timed[0].needed, 0.42);
  EXPECT_DOUBLE_EQ(timed[0].transfer, 1e-4 + 5000e-6);
  EXPECT_DOUBLE_EQ(timed[1].ready, 0.3);
  EXPECT_DOUBLE_EQ(timed[1].needed, 0.41);
}

}  // namespace launch_order_test
}  // namespace weft::engine::internal
