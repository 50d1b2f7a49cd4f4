#include "weft/comm/internal/task_queues.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/base/error.h"

namespace weft::comm::internal {

struct TaskQueues::State : std::enable_shared_from_this<State> {
  struct Queue {
    std::deque<Task> tasks;
    bool busy = false;  // a thread or a caller is running a task of this queue
  };

  void end();
  void post(std::uint64_t id, Task task);
  void run(std::uint64_t id, const Task& task);
  // Returns when the queues end and no task is left.
  void work();
  // Runs the next task of the first ready queue. Called with the lock held, which it lets go of
  // meanwhile.
  void run_next(std::unique_lock<std::mutex>& lock);
  // Gives the queues in ready_ to an idle thread or to a new one. Throws Error(kUnavailable).
  void call_worker();
  // As call_worker(), on a thread that can run the tasks itself. False if it has to.
  bool has_worker() noexcept;

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, done_;
  std::map<std::uint64_t, Queue> queues_;
  std::deque<std::uint64_t> ready_;  // queues with tasks that no thread runs
  std::vector<std::thread> threads_;
  StartThread start_;
  int idle_ = 0;
  bool stopping_ = false;
};

TaskQueues::TaskQueues(StartThread start) : state_(std::make_shared<State>()) {
  state_->start_ = start != nullptr ? start : [](std::function<void()> body) {
    return std::thread(std::move(body));
  };
}
TaskQueues::~TaskQueues() { state_->end(); }
void TaskQueues::post(std::uint64_t id, Task task) { state_->post(id, std::move(task)); }
void TaskQueues::run(std::uint64_t id, const Task& task) { state_->run(id, task); }

void TaskQueues::State::end() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  auto threads = std::move(threads_);
  lock.unlock();
  for (auto& thread : threads) {
    if (thread.get_id() != std::this_thread::get_id()) continue;
    work();  // runs the remaining tasks while the owner of the queues still exists
    thread.detach();
  }
  for (auto& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

void TaskQueues::State::call_worker() {
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
  } catch (const Error&) {
    return false;
  }
}

void TaskQueues::State::post(std::uint64_t id, Task task) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[id];
  queue.tasks.push_back(std::move(task));
  // Otherwise the thread that runs the queue takes the task, or the queue is in ready_ already.
  if (queue.busy || queue.tasks.size() > 1) return;
  ready_.push_back(id);
  try {
    call_worker();
  } catch (const Error&) {
    ready_.pop_back();
    queue.tasks.pop_back();
    throw;
  }
}

void TaskQueues::State::run(std::uint64_t id, const Task& task) {
  std::unique_lock lock(mutex_);
  Queue& queue = queues_[id];
  if (!queue.busy && queue.tasks.empty()) {
    queue.busy = true;
    lock.unlock();
    const After after = task();
    lock.lock();
    queue.busy = false;
    if (!queue.tasks.empty()) ready_.push_back(id);  // posted meanwhile by another thread
    const bool left = !queue.tasks.empty() && !has_worker();
    lock.unlock();
    if (after) after();
    lock.lock();
    while (left && !ready_.empty()) run_next(lock);
    return;
  }
  lock.unlock();
  bool finished = false;
  post(id, [&]() -> After {
    After after = task();
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
  Queue& queue = queues_[id];
  if (queue.busy || queue.tasks.empty()) return;
  queue.busy = true;
  Task task = std::move(queue.tasks.front());
  queue.tasks.pop_front();
  lock.unlock();
  After after = task();
  task = nullptr;
  lock.lock();
  queue.busy = false;
  if (!queue.tasks.empty()) ready_.push_back(id);
  if (!after) return;
  // Without another thread, the tasks wait until the callbacks are done.
  if (!ready_.empty()) has_worker();
  lock.unlock();
  after();
  after = nullptr;
  lock.lock();
}

}  // namespace weft::comm::internal
