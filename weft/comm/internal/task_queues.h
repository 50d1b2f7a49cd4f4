// Threads for asynchronous operations: tasks of one queue run in order, different queues run
// concurrently.
//
// A thread exists while a queue has work and for some milliseconds after. If all calls are
// synchronous, there is no thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft::comm::internal {

class TaskQueues {
 public:
  // Returns the function to call once the queue is free for its next task: callbacks, which may
  // wait for later tasks.
  using After = std::function<void()>;
  using Task = std::function<After()>;

  TaskQueues();
  // Waits for the running tasks. Call the engine's fail() first if they might not end by
  // themselves. Any thread may call it, including one of the queues' own.
  ~TaskQueues();
  TaskQueues(const TaskQueues&) = delete;
  TaskQueues& operator=(const TaskQueues&) = delete;

  // Runs `task` after all earlier tasks of `queue`. Tasks do not throw.
  void post(std::uint64_t id, Task task);
  // Runs `task` on the calling thread if the queue is empty, so that a synchronous call needs no
  // thread switch. Otherwise posts it and waits.
  void run(std::uint64_t id, const Task& task);

 private:
  struct State;
  std::shared_ptr<State>
      // also held by each thread: the task that it has just run may have held the last reference to
      // the owner of these queues
      state_;
};

}  // namespace weft::comm::internal
