// Threads for operations that go on while their caller does: tasks of one lane run in order, lanes run side by side.
//
// A thread exists while a lane has work and some milliseconds after; none where everything is synchronous.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::comm::internal {

class Lanes {
 public:
  // Gives what is to be done when the lane is free for its next task: the callbacks of whoever waits, which may wait for later tasks.
  using After = std::function<void()>;
  using Task = std::function<After()>;

  Lanes() = default;
  // Waits for the tasks under way; call the engine's fail() first where they might not end by themselves.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Runs `task` after all earlier tasks of `lane`. Tasks do not throw.
  void post(std::uint64_t lane, Task task);
  // Runs `task` here and now where the lane is empty, so that a synchronous call costs no change of threads; else posts it and waits.
  void run(std::uint64_t lane, const Task& task);

 private:
  struct Queue {
    std::deque<Task> tasks;
    bool busy = false;  // a thread or a caller is running a task of this lane
  };
  void work();
  // With the lock held: the lane has tasks and nobody runs them.
  void make_ready(std::uint64_t lane);
  void call_worker();

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, done_;
  std::map<std::uint64_t, Queue> queues_;
  std::deque<std::uint64_t> ready_;  // lanes with tasks and nobody to run them
  std::vector<std::thread> threads_;
  int idle_ = 0;
  bool stopping_ = false;
};

}  // namespace weft::comm::internal
