// Threads for asynchronous operations: tasks of one queue run in order, different queues run
// concurrently.
//
// A thread starts when a task needs one, and stays for later tasks. If all calls are synchronous,
// there is no thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace weft::comm::internal {

class TaskQueues {
 public:
  // Returns the function to call once the queue is free for its next task: callbacks, which may
  // wait for later tasks.
  using After = std::function<void()>;
  using Task = std::function<After()>;

  // Starts a thread that runs `body`. Throws std::system_error if the system has no more.
  using StartThread = std::thread (*)(std::function<void()> body);

  // Null: std::thread. `patience`: how long to try again where the system has no thread, as when a
  // limit of processes is reached for a while.
  explicit TaskQueues(StartThread start = nullptr,
                      std::chrono::milliseconds patience = std::chrono::seconds(5));
  // Waits for the running tasks. Call the engine's fail() first if they might not end by
  // themselves. Any thread may call it, including one of the queues' own.
  ~TaskQueues();
  TaskQueues(const TaskQueues&) = delete;
  TaskQueues& operator=(const TaskQueues&) = delete;

  // Runs `task` after all earlier tasks of `queue`. Tasks do not throw. Throws Error(kUnavailable)
  // if a thread is needed and cannot be started; the task is then not run.
  void post(std::uint64_t id, Task task);
  // Runs `task` on the calling thread if the queue is empty, so that a synchronous call needs no
  // thread switch. Otherwise posts it and waits. Never needs a new thread if the queue is empty.
  void run(std::uint64_t id, const Task& task);
  // Runs `body` on the calling thread if the queue kFirst is empty, as run() does, but without
  // locks and allocations: two atomic operations. Returns false without running it otherwise.
  // `body` does not throw.
  template <class Body>
  bool run_if_empty(const Body& body) {
    if (!begin_turn()) return false;
    body();
    end_turn();
    return true;
  }

  static constexpr std::uint64_t kFirst = 0;

 private:
  struct State;
  bool begin_turn() noexcept;
  void end_turn();

  // Also held by each thread: the task that it has just run may have held the last reference to the
  // owner of these queues.
  std::shared_ptr<State> state_;
};

}  // namespace weft::comm::internal
