#include "weft/comm/internal/lanes.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace weft::comm::internal {

struct Lanes::State : std::enable_shared_from_this<State> {
  struct Queue {
    std::deque<Task> tasks;
    bool busy = false;  // a thread or a caller is running a task of this lane
  };

  void end();
  void post(std::uint64_t lane, Task task);
  void run(std::uint64_t lane, const Task& task);
  // Until there is nothing to do and the lanes end.
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

Lanes::Lanes() : state_(std::make_shared<State>()) {}
Lanes::~Lanes() { state_->end(); }
void Lanes::post(std::uint64_t lane, Task task) { state_->post(lane, std::move(task)); }
void Lanes::run(std::uint64_t lane, const Task& task) { state_->run(lane, task); }

void Lanes::State::end() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  auto threads = std::move(threads_);
  lock.unlock();
  for (auto& thread : threads) {
    if (thread.get_id() != std::this_thread::get_id()) continue;
    work();  // what is left, while whoever owns the lanes is still there
    thread.detach();
  }
  for (auto& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

void Lanes::State::call_worker() {
  if (idle_ < static_cast<int>(ready_.size())) {
    threads_.emplace_back([state = shared_from_this()] { state->work(); });
  } else {
    wake_.notify_one();
  }
}

void Lanes::State::make_ready(std::uint64_t lane) {
  ready_.push_back(lane);
  call_worker();
}

void Lanes::State::post(std::uint64_t lane, Task task) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[lane];
  queue.tasks.push_back(std::move(task));
  if (!queue.busy && queue.tasks.size() == 1) make_ready(lane);  // else whoever runs the lane takes it, or it is in ready_ already
}

void Lanes::State::run(std::uint64_t lane, const Task& task) {
  std::unique_lock lock(mutex_);
  Queue& queue = queues_[lane];
  if (!queue.busy && queue.tasks.empty()) {
    queue.busy = true;
    lock.unlock();
    const After after = task();
    lock.lock();
    queue.busy = false;
    if (!queue.tasks.empty()) make_ready(lane);  // came in the meantime, from another thread
    lock.unlock();
    if (after) after();
    return;
  }
  lock.unlock();
  bool finished = false;
  post(lane, [&]() -> After {
    After after = task();
    std::lock_guard inner(mutex_);
    finished = true;
    done_.notify_all();
    return after;
  });
  lock.lock();
  done_.wait(lock, [&] { return finished; });
}

void Lanes::State::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (ready_.empty()) {
      if (stopping_) return;
      ++idle_;
      wake_.wait(lock);
      --idle_;
      continue;
    }
    const std::uint64_t lane = ready_.front();
    ready_.pop_front();
    Queue& queue = queues_[lane];
    if (queue.busy || queue.tasks.empty()) continue;
    queue.busy = true;
    Task task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    lock.unlock();
    After after = task();
    task = nullptr;
    lock.lock();
    queue.busy = false;
    if (!queue.tasks.empty()) ready_.push_back(lane);
    if (!after) continue;
    if (!ready_.empty()) call_worker();
    lock.unlock();
    after();
    after = nullptr;
    lock.lock();
  }
}

}  // namespace weft::comm::internal
