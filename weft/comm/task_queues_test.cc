#include "weft/comm/internal/task_queues.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "weft/base/error.h"

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

std::atomic<bool> a_thread_has_ended;

std::thread start_and_tell_its_end(std::function<void()> body) {
  return std::thread([body = std::move(body)] {
    body();
    a_thread_has_ended = true;
    a_thread_has_ended.notify_all();
  });
}

TEST(TaskQueues, WaitAtTheirEndForThreadsThatStartMeanwhile) {
  a_thread_has_ended = false;
  bool done = false;
  std::promise<void> is_done;
  {
    TaskQueues queues(start_and_tell_its_end);
    queues.post(1, [&]() -> TaskQueues::After {
      // The thread of queue 2 ends only when the queues do.
      a_thread_has_ended.wait(false);
      return [&] { is_done.get_future().wait(); };  // another thread runs the next task
    });
    queues.post(1, [&]() -> TaskQueues::After {
      done = true;
      is_done.set_value();
      return nullptr;
    });
    queues.post(2, []() -> TaskQueues::After { return nullptr; });
  }
  EXPECT_TRUE(done);
}

std::atomic<int> threads_left;

std::thread start_if_left(std::function<void()> body) {
  if (threads_left.fetch_sub(1) <= 0)
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  return std::thread(std::move(body));
}

TEST(TaskQueues, RefuseATaskIfItsThreadCannotBeStartedAndStillEnd) {
  threads_left = 0;
  std::atomic<int> done = 0;
  const auto task = [&done]() -> TaskQueues::After {
    ++done;
    return nullptr;
  };
  {
    TaskQueues queues(start_if_left, std::chrono::milliseconds(30));
    try {
      queues.post(1, task);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kUnavailable);
      EXPECT_NE(error.message().find("cannot start a thread"), std::string::npos);
    }
    queues.run(1, task);
    EXPECT_EQ(done, 1);
    threads_left = 1;
    queues.post(1, task);
  }
  EXPECT_EQ(done, 2);
}

TEST(TaskQueues, WaitForAThreadWhileTheSystemHasNone) {
  threads_left = 0;
  std::atomic<int> done = 0;
  {
    TaskQueues queues(start_if_left, std::chrono::seconds(20));
    std::thread later([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      threads_left = 1;
    });
    queues.post(1, [&done]() -> TaskQueues::After {
      ++done;
      return nullptr;
    });
    later.join();
  }
  EXPECT_EQ(done, 1);
}

TEST(TaskQueues, RunsTasksThatWerePostedDuringASynchronousCallItselfWithoutThreads) {
  threads_left = 0;
  std::atomic<int> done = 0;
  TaskQueues queues(start_if_left);
  queues.run(1, [&]() -> TaskQueues::After {
    std::thread([&] {
      queues.post(1, [&done]() -> TaskQueues::After {
        ++done;
        return nullptr;
      });
    }).join();
    return nullptr;
  });
  EXPECT_EQ(done, 1);
}

TEST(TaskQueues, RunATaskOfTheFirstQueueAtOnceOnlyIfTheQueueIsEmpty) {
  TaskQueues queues;
  std::promise<void> go;
  int order = 0;
  queues.post(TaskQueues::kFirst, [&]() -> TaskQueues::After {
    go.get_future().wait();
    order = 1;
    return nullptr;
  });
  EXPECT_FALSE(queues.run_if_empty([] { FAIL() << "it ran before the posted task"; }));
  go.set_value();
  queues.run(TaskQueues::kFirst, [&]() -> TaskQueues::After {
    EXPECT_EQ(order, 1);
    return nullptr;
  });
  // The thread that ran these tasks may not have left the queue yet.
  while (!queues.run_if_empty([&] { order = 2; })) std::this_thread::yield();
  EXPECT_EQ(order, 2);
  EXPECT_TRUE(queues.run_if_empty([&] { order = 3; }));
  EXPECT_EQ(order, 3);
}

TEST(TaskQueues, RunTasksThatWerePostedDuringATaskThatRunsAtOnce) {
  for (const int threads : {0, 100}) {
    threads_left = threads;
    std::atomic<int> done = 0;
    TaskQueues queues(start_if_left);
    const auto task = [&done]() -> TaskQueues::After {
      ++done;
      return nullptr;
    };
    EXPECT_TRUE(queues.run_if_empty([&] {
      std::thread([&] {
        queues.post(TaskQueues::kFirst, task);
        EXPECT_FALSE(queues.run_if_empty([] {}));
      }).join();
      EXPECT_EQ(done, 0);
    }));
    queues.run(TaskQueues::kFirst, task);
    EXPECT_EQ(done, 2);
  }
}

TEST(TaskQueues, RunOneTaskOfTheFirstQueueAtATimeWhoeverCalls) {
  constexpr int kCalls = 2000;
  int count = 0;  // a race if two tasks ran at once
  TaskQueues queues;
  const auto task = [&]() -> TaskQueues::After {
    ++count;
    return nullptr;
  };
  std::thread other([&] {
    for (int call = 0; call < kCalls; ++call) queues.post(TaskQueues::kFirst, task);
  });
  for (int call = 0; call < kCalls; ++call) {
    if (!queues.run_if_empty([&] { ++count; })) queues.run(TaskQueues::kFirst, task);
  }
  other.join();
  queues.run(TaskQueues::kFirst, task);
  EXPECT_EQ(count, 2 * kCalls + 1);
}

}  // namespace
}  // namespace weft::comm::internal
