#include "weft/comm/internal/work.h"

#include <ATen/core/ivalue.h>

#include <utility>

#include "weft/observe/position/position.h"

namespace weft::comm::internal {

WeftWork::WeftWork(int rank, const Shown& shown, std::uint64_t number)
    : Work(rank, shown.type, shown.title, shown.inputs),
      name_(shown.name().data()),
      number_(number),
      results_(shown.results) {}

bool WeftWork::wait(std::chrono::milliseconds timeout) {
  if (isCompleted()) return Work::wait(timeout);
  const observe::WaitScope shown(name_, -1);
  const auto patience = begin_wait();
  if (timeout == kNoTimeout && patience != kNoTimeout) {
    std::unique_lock lock(mutex_);
    const bool ended = cv_.wait_for(lock, patience, [this] { return completed_; });
    lock.unlock();
    if (!ended) expire();
  }
  return Work::wait(timeout);
}

std::chrono::milliseconds WeftWork::begin_wait() {
  const std::lock_guard lock(waiting_mutex_);
  if (waiting_.wait && !std::exchange(is_awaited_, true)) waiting_.wait(true);
  return waiting_.patience;
}

void WeftWork::expire() {
  const std::lock_guard lock(waiting_mutex_);
  if (waiting_.expire) std::exchange(waiting_.expire, nullptr)();
}

std::function<void()> WeftWork::end(std::exception_ptr why, int source) {
  {
    const std::lock_guard lock(waiting_mutex_);
    if (is_awaited_) waiting_.wait(false);
    waiting_ = {};
  }
  source_ = source;
  finish(why);
  std::lock_guard lock(future_mutex_);
  settled_ = true;
  if (!future_) return nullptr;
  return [self = c10::intrusive_ptr<WeftWork>::reclaim_copy(this)] { self->complete(); };
}

c10::intrusive_ptr<c10::ivalue::Future> WeftWork::getFuture() {
  std::unique_lock lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  auto future = future_;
  if (settled_) {
    lock.unlock();
    complete();
  }
  return future;
}

void WeftWork::complete() {
  if (const auto why = exception()) {
    future_->setError(why);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
}

}  // namespace weft::comm::internal
