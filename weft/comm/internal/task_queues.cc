// Tasks of a queue run one at a time, in order. A queue with work has a thread of its own, since a
// task may wait for a peer that needs a task of another queue. `ready_` lists the queues that have
// a task and no runner. For each, there is an idle thread or a new one. If the system has no thread
// left, whoever notices it runs the tasks itself (run_left()), or post() fails.
//
// Queue kFirst has a fast path without the lock, for synchronous collectives. `turn_` says who may
// run a task of it:
//
//   kFree   ─► kCaller  begin_turn()
//   kCaller ─► kFree    end_turn(), if no other task has come meanwhile
//   kFree   ─► kLocked  open(), under the lock
//   kCaller ─► kLocked  open(), under the lock: the queue is marked busy for the caller
//   kLocked ─► kFree    settle(), under the lock: no task runs or waits
//
// Invariant: with kFree and kCaller the queue's fields are empty. With kLocked they say everything,
// and end_turn() fails in its exchange, so the caller hands over under the lock. Acquire and
// release of `turn_` make the effects of a task visible to the next one.
//
// A task runs without the lock. Its callbacks (After) run when its queue is free again, because
// they may wait for later tasks of it.
#include "weft/comm/internal/task_queues.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"

namespace weft::comm::internal {

struct TaskQueues::State : std::enable_shared_from_this<State> {
  struct Queue {
    std::deque<Task> tasks;
    bool busy = false;  // a thread or a caller is running a task of this queue
  };

  // Who may run a task of the queue kFirst.
  enum class Turn {
    kFree,    // The queue is empty and no task of it runs.
    kCaller,  // A caller runs its task without the lock, and no other task has come.
    kLocked,  // The queue's fields say it.
  };

  void end();
  void end_turn();
  void post(std::uint64_t id, Task task);
  // Leaves the task to the caller if it throws.
  void try_post(std::uint64_t id, Task& task);
  void run(std::uint64_t id, const Task& task);
  // Returns the queue. Its fields are valid until settle(). Called with the lock held.
  Queue& open(std::uint64_t id);
  // After a change of the queue's fields: it is ready, or free if it is empty. Called with the lock
  // held.
  void settle(std::uint64_t id, Queue& queue);
  // Runs the tasks that are ready, if no thread can. Called with the lock held.
  void run_left(std::unique_lock<std::mutex>& lock);
  // Returns when the queues end and no task is left.
  void work();
  // Runs the next task of the first ready queue. Called with the lock held, which it lets go of
  // meanwhile.
  void run_next(std::unique_lock<std::mutex>& lock);
  // Gives the queues in ready_ to an idle thread or to a new one. Throws Error(kUnavailable).
  void call_worker();
  // As call_worker(), on a thread that can run the tasks itself. False if it has to.
  bool has_worker() noexcept;

  std::atomic<Turn> turn_ = Turn::kFree;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, done_;
  std::map<std::uint64_t, Queue> queues_;
  std::deque<std::uint64_t> ready_;  // queues with tasks that no thread runs
  std::vector<std::thread> threads_;
  StartThread start_;
  std::chrono::milliseconds patience_;
  int idle_ = 0;
  bool stopping_ = false;
};

TaskQueues::TaskQueues(StartThread start, std::chrono::milliseconds patience)
    : state_(std::make_shared<State>()) {
  state_->patience_ = patience;
  state_->start_ = start != nullptr ? start : [](std::function<void()> body) {
    return std::thread(std::move(body));
  };
}
TaskQueues::~TaskQueues() { state_->end(); }
void TaskQueues::post(std::uint64_t id, Task task) { state_->post(id, std::move(task)); }
void TaskQueues::run(std::uint64_t id, const Task& task) { state_->run(id, task); }

bool TaskQueues::begin_turn() noexcept {
  State::Turn free = State::Turn::kFree;
  return state_->turn_.compare_exchange_strong(
      free, State::Turn::kCaller, std::memory_order_acquire, std::memory_order_relaxed);
}

void TaskQueues::end_turn() {
  State::Turn mine = State::Turn::kCaller;
  if (!state_->turn_.compare_exchange_strong(mine, State::Turn::kFree, std::memory_order_release,
                                             std::memory_order_relaxed))
    state_->end_turn();
}

void TaskQueues::State::end_turn() {
  std::unique_lock lock(mutex_);
  Queue& queue = open(kFirst);
  queue.busy = false;
  settle(kFirst, queue);
  if (!queue.tasks.empty() && !has_worker()) run_left(lock);
}

TaskQueues::State::Queue& TaskQueues::State::open(std::uint64_t id) {
  Queue& queue = queues_[id];
  // The caller runs without the lock: from now on the fields must show it.
  if (id == kFirst && turn_.exchange(Turn::kLocked, std::memory_order_acq_rel) == Turn::kCaller)
    queue.busy = true;
  return queue;
}

void TaskQueues::State::settle(std::uint64_t id, Queue& queue) {
  if (queue.busy) return;
  if (!queue.tasks.empty()) {
    ready_.push_back(id);
  } else if (id == kFirst) {
    turn_.store(Turn::kFree, std::memory_order_release);
  }
}

void TaskQueues::State::run_left(std::unique_lock<std::mutex>& lock) {
  while (!ready_.empty()) run_next(lock);
}

void TaskQueues::State::end() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  // A thread that is about to run callbacks may start another one for the tasks that are left.
  while (!threads_.empty()) {
    auto threads = std::exchange(threads_, {});
    lock.unlock();
    for (auto& thread : threads) {
      if (thread.get_id() != std::this_thread::get_id()) continue;
      work();  // runs the remaining tasks while the owner of the queues still exists
      thread.detach();
    }
    for (auto& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    lock.lock();
  }
}

void TaskQueues::State::call_worker() {
  // An idle thread that was woken counts until it has the lock, so each ready queue needs one.
  if (idle_ >= static_cast<int>(ready_.size())) return wake_.notify_one();
  try {
    threads_.push_back(start_([state = shared_from_this()] { state->work(); }));
  } catch (const std::system_error& error) {
    throw Error(Errc::kUnavailable,
                "cannot start a thread for communication (" + error.code().message() +
                    "): raise the limit of processes (ulimit -u, or the container's pids limit)");
  }
}

bool TaskQueues::State::has_worker() noexcept {
  try {
    call_worker();
    return true;
  } catch (const Error&) {  // no thread left; the caller runs the task itself
    return false;
  }
}

void TaskQueues::State::post(std::uint64_t id, Task task) {
  constexpr std::chrono::milliseconds kPause{20};
  for (const auto limit = Deadline::in(patience_);;) {
    try {
      return try_post(id, task);
    } catch (const Error&) {
      if (limit.passed()) throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void TaskQueues::State::try_post(std::uint64_t id, Task& task) {
  std::lock_guard lock(mutex_);
  Queue& queue = open(id);
  queue.tasks.push_back(std::move(task));
  // Otherwise the thread that runs the queue takes the task, or the queue is in ready_ already.
  if (queue.busy || queue.tasks.size() > 1) return;
  ready_.push_back(id);
  try {
    call_worker();
  } catch (const Error&) {
    ready_.pop_back();
    task = std::move(queue.tasks.back());
    queue.tasks.pop_back();
    settle(id, queue);
    throw;
  }
}

void TaskQueues::State::run(std::uint64_t id, const Task& task) {
  std::unique_lock lock(mutex_);
  Queue& queue = open(id);
  if (!queue.busy && queue.tasks.empty()) {
    queue.busy = true;
    lock.unlock();
    const After after = task();
    lock.lock();
    queue.busy = false;
    settle(id, queue);
    const bool left = !queue.tasks.empty() && !has_worker();  // posted by another thread
    lock.unlock();
    if (after) after();
    lock.lock();
    if (left) run_left(lock);
    return;
  }
  lock.unlock();
  bool finished = false;
  post(id, [&]() -> After {
    After after = task();
    // `finished` is on the stack of run(), which returns when it has the lock and sees it.
    std::lock_guard inner(mutex_);
    finished = true;
    done_.notify_all();
    return after;
  });
  lock.lock();
  done_.wait(lock, [&] { return finished; });
}

void TaskQueues::State::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_ || !ready_.empty()) {
    if (!ready_.empty()) {
      run_next(lock);
    } else {
      ++idle_;
      wake_.wait(lock);
      --idle_;
    }
  }
}

void TaskQueues::State::run_next(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t id = ready_.front();
  ready_.pop_front();
  Queue& queue = open(id);
  if (queue.busy || queue.tasks.empty()) return;
  queue.busy = true;
  Task task = std::move(queue.tasks.front());
  queue.tasks.pop_front();
  lock.unlock();
  After after = task();
  task = nullptr;
  lock.lock();
  queue.busy = false;
  settle(id, queue);
  if (!after) return;
  // Without another thread, the tasks wait until the callbacks are done.
  if (!ready_.empty()) has_worker();
  lock.unlock();
  after();
  after = nullptr;
  lock.lock();
}

}  // namespace weft::comm::internal
