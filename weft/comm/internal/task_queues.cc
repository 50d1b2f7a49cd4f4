#include "weft/comm/internal/task_queues.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

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
  // Called with the lock held: the queue has tasks and no thread runs them.
  void make_ready(std::uint64_t id);
  void call_worker();

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, done_;
  std::map<std::uint64_t, Queue> queues_;
  std::deque<std::uint64_t> ready_;  // queues with tasks that no thread runs
  std::vector<std::thread> threads_;
  int idle_ = 0;
  bool stopping_ = false;
};

TaskQueues::TaskQueues() : state_(std::make_shared<State>()) {}
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
  if (idle_ < static_cast<int>(ready_.size())) {
    threads_.emplace_back([state = shared_from_this()] { state->work(); });
  } else {
    wake_.notify_one();
  }
}

void TaskQueues::State::make_ready(std::uint64_t id) {
  ready_.push_back(id);
  call_worker();
}

void TaskQueues::State::post(std::uint64_t id, Task task) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[id];
  queue.tasks.push_back(std::move(task));
  // Otherwise the thread that runs the queue takes the task, or the queue is in ready_ already.
  if (!queue.busy && queue.tasks.size() == 1) make_ready(id);
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
    if (!queue.tasks.empty()) make_ready(id);  // posted meanwhile by another thread
    lock.unlock();
    if (after) after();
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
  for (;;) {
    if (ready_.empty()) {
      if (stopping_) return;
      ++idle_;
      wake_.wait(lock);
      --idle_;
      continue;
    }
    const std::uint64_t id = ready_.front();
    ready_.pop_front();
    Queue& queue = queues_[id];
    if (queue.busy || queue.tasks.empty()) continue;
    queue.busy = true;
    Task task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    lock.unlock();
    After after = task();
    task = nullptr;
    lock.lock();
    queue.busy = false;
    if (!queue.tasks.empty()) ready_.push_back(id);
    if (!after) continue;
    if (!ready_.empty()) call_worker();
    lock.unlock();
    after();
    after = nullptr;
    lock.lock();
  }
}

}  // namespace weft::comm::internal
