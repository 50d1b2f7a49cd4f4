// Threads for operations that go on while their caller does: tasks of one lane run in order, lanes run side by side.
//
// A thread exists while a lane has work and some milliseconds after; none where everything is synchronous.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft::comm::internal {

class Lanes {
 public:
  // Gives what is to be done when the lane is free for its next task: the callbacks of whoever waits, which may wait for later tasks.
  using After = std::function<void()>;
  using Task = std::function<After()>;

  Lanes();
  // Waits for the tasks under way; call the engine's fail() first where they might not end by themselves. Any thread, one of the lanes' own
  // included.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Runs `task` after all earlier tasks of `lane`. Tasks do not throw.
  void post(std::uint64_t lane, Task task);
  // Runs `task` here and now where the lane is empty, so that a synchronous call costs no change of threads; else posts it and waits.
  void run(std::uint64_t lane, const Task& task);

 private:
  struct State;
  std::shared_ptr<State> state_;  // a thread's too: what it has just run may have held the last reference to whoever owns these lanes
};

}  // namespace weft::comm::internal
