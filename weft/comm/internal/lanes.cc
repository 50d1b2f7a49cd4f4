#include "weft/comm/internal/lanes.h"

#include <utility>

namespace weft::comm::internal {

Lanes::~Lanes() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  auto threads = std::move(threads_);
  lock.unlock();
  for (auto& thread : threads) thread.join();
}

void Lanes::call_worker() {
  if (idle_ < static_cast<int>(ready_.size())) {
    threads_.emplace_back([this] { work(); });
  } else {
    wake_.notify_one();
  }
}

void Lanes::make_ready(std::uint64_t lane) {
  ready_.push_back(lane);
  call_worker();
}

void Lanes::post(std::uint64_t lane, Task task) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[lane];
  queue.tasks.push_back(std::move(task));
  if (!queue.busy && queue.tasks.size() == 1) make_ready(lane);  // else whoever runs the lane takes it, or it is in ready_ already
}

void Lanes::run(std::uint64_t lane, const Task& task) {
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

void Lanes::work() {
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
