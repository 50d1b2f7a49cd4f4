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

void Lanes::post(std::uint64_t lane, Task task) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[lane];
  queue.tasks.push_back(std::move(task));
  if (queue.busy || queue.tasks.size() > 1) return;  // whoever runs the lane takes it, or it is in ready_ already
  ready_.push_back(lane);
  if (idle_ < static_cast<int>(ready_.size())) {
    threads_.emplace_back([this] { work(); });
  } else {
    wake_.notify_one();
  }
}

void Lanes::run(std::uint64_t lane, const Task& task) {
  std::unique_lock lock(mutex_);
  Queue& queue = queues_[lane];
  if (!queue.busy && queue.tasks.empty()) {
    queue.busy = true;
    lock.unlock();
    task();
    lock.lock();
    queue.busy = false;
    if (!queue.tasks.empty()) {  // came in the meantime, from another thread
      ready_.push_back(lane);
      if (idle_ < static_cast<int>(ready_.size())) threads_.emplace_back([this] { work(); });
      wake_.notify_one();
    }
    return;
  }
  lock.unlock();
  bool finished = false;
  post(lane, [&] {
    task();
    std::lock_guard inner(mutex_);
    finished = true;
    done_.notify_all();
  });
  lock.lock();
  done_.wait(lock, [&] { return finished; });
}

void Lanes::drain(Queue& queue, std::unique_lock<std::mutex>& lock) {
  queue.busy = true;
  while (!queue.tasks.empty()) {
    Task task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
  queue.busy = false;
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
    if (!queue.busy) drain(queue, lock);
  }
}

}  // namespace weft::comm::internal
