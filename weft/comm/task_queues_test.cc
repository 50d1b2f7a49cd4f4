#include "weft/comm/internal/task_queues.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

namespace weft::comm::internal {
namespace {

TEST(TaskQueues, RunTheTasksOfAQueueInOrder) {
  std::vector<int> order;
  {
    TaskQueues queues;
    for (int i = 0; i < 100; ++i) {
      queues.post(7, [&order, i]() -> TaskQueues::After {
        order.push_back(i);
        return nullptr;
      });
    }
    queues.run(7, [&order]() -> TaskQueues::After {
      order.push_back(100);
      return nullptr;
    });
    EXPECT_EQ(order.size(), 101u);
  }
  for (int i = 0; i <= 100; ++i) EXPECT_EQ(order.at(static_cast<std::size_t>(i)), i);
}

TEST(TaskQueues, MayBeDestroyedInTheirOwnCallbackWhichRunsTheRemainingTasks) {
  auto queues = std::make_shared<TaskQueues>();
  std::promise<void> owner_gone, ended;
  std::atomic<int> left = 0;
  queues->post(1, [&, held = queues]() mutable -> TaskQueues::After {
    owner_gone.get_future().wait();
    for (int i = 0; i < 3; ++i) {
      held->post(1, [&left]() -> TaskQueues::After {
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
  queues.reset();
  owner_gone.set_value();
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace weft::comm::internal
