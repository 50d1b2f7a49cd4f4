// Threads for operations that go on while their caller does: tasks of one queue run in order,
// queues run side by side.
//
// A thread exists while a queue has work and some milliseconds after; none where everything is
// synchronous.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft::comm::internal {

class TaskQueues {
 public:
  // Gives what is to be done when the queue is free for its next task: the callbacks of whoever
  // waits, which may wait for later tasks.
  using After = std::function<void()>;
  using Task = std::function<After()>;

  TaskQueues();
  // Waits for the tasks under way; call the engine's fail() first where they might not end by
  // themselves. Any thread, one of the queues' own included.
  ~TaskQueues();
  TaskQueues(const TaskQueues&) = delete;
  TaskQueues& operator=(const TaskQueues&) = delete;

  // Runs `task` after all earlier tasks of `queue`. Tasks do not throw.
  void post(std::uint64_t id, Task task);
  // Runs `task` here and now where the queue is empty, so that a synchronous call costs no change
  // of threads; else posts it and waits.
  void run(std::uint64_t id, const Task& task);

 private:
  struct State;
  std::shared_ptr<State>
      // a thread's too: what it has just run may have held the last reference to whoever owns these
      // queues
      state_;
};

}  // namespace weft::comm::internal
