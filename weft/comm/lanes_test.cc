#include "weft/comm/internal/lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

namespace weft::comm::internal {
namespace {

TEST(Lanes, RunTheTasksOfALaneInOrder) {
  std::vector<int> order;
  {
    Lanes lanes;
    for (int i = 0; i < 100; ++i) {
      lanes.post(7, [&order, i]() -> Lanes::After {
        order.push_back(i);
        return nullptr;
      });
    }
    lanes.run(7, [&order]() -> Lanes::After {
      order.push_back(100);
      return nullptr;
    });
    EXPECT_EQ(order.size(), 101u);
  }
  for (int i = 0; i <= 100; ++i) EXPECT_EQ(order.at(static_cast<std::size_t>(i)), i);
}

TEST(Lanes, MayEndInACallbackOfTheirOwnWhichRunsWhatIsLeft) {
  auto lanes = std::make_shared<Lanes>();
  std::promise<void> owner_gone, ended;
  std::atomic<int> left = 0;
  lanes->post(1, [&, held = lanes]() mutable -> Lanes::After {
    owner_gone.get_future().wait();
    for (int i = 0; i < 3; ++i) {
      held->post(1, [&left]() -> Lanes::After {
        ++left;
        return nullptr;
      });
    }
    return [&left, &ended, held = std::move(held)]() mutable {
      held.reset();
      EXPECT_EQ(left, 3);
      ended.set_value();
    };
  });
  lanes.reset();
  owner_gone.set_value();
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace weft::comm::internal
