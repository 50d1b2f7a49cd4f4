// AsyncSaver: a thread writes while the caller trains on. It has one task at a time.
//
//   caller   save():  wait ── copy slices ── begin ── … until released ── return ── train
//   thread                                      └─ write uncopied slices ── release ── write copies
//                                                  ── commit (internal/save_job.cc) ── result
//
// "Released" means that no tensor of the caller will be read any more. If all slices were copied,
// this holds from the start, so save() takes the time of a copy in memory.
//
// mutex_ guards the task, the result and the flags; one condition variable serves all waits.
// staging_ needs no lock: it is the thread's while there is a task, else the caller's, and mutex_
// orders the change. The thread has a group of its own, since collectives of two threads on one
// group would mix.
//
// A rank must not throw while the others write: they would wait for it. So an error before the
// write goes into the task, and run_save() tells it to all ranks. No exception leaves the thread:
// it becomes Result::error.
#include "weft/checkpoint/sharded.h"

#include <c10/core/AutogradState.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "weft/base/caught/caught.h"
#include "weft/base/log.h"
#include "weft/checkpoint/internal/latest.h"
#include "weft/checkpoint/internal/save_job.h"
#include "weft/checkpoint/internal/staging.h"
#include "weft/comm/texts.h"

namespace weft::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t bytes_of(const internal::SaveJob& job) {
  std::int64_t bytes = 0;
  for (const auto& file : job.files) bytes += file.bytes;
  return bytes;
}

}  // namespace

void check_parts(const Parts& parts) {
  const internal::SaveJob job = internal::plan_save("", {.parts = parts, .state = {}}, {}, 0, 1);
  if (job.refused) throw *job.refused;
}

std::string save(const std::string& dir, const Shards& shards, const Group& group,
                 SaveOptions options) {
  return internal::run_save(internal::plan_save(dir, shards, options, group.rank(), group.size()),
                            internal::ranks_of(group));
}

class AsyncSaver::Impl {
 public:
  Impl(const Group& group, std::int64_t staging_bytes)
      : group_(group.duplicate("checkpoint")),
        ranks_(internal::ranks_of(group_)),
        staging_bytes_(staging_bytes) {
    try {
      comm::together(group_, [this] { thread_ = std::thread([this] { work(); }); });
    } catch (...) {
      end();
      throw;
    }
  }

  ~Impl() {
    // A rank that leaves by an exception does not wait for its peers.
    if (std::uncaught_exceptions() > 0) group_.abort();
    end();
  }

  void reserve(const Shards& shards) {
    wait_until_idle();
    const auto bytes = internal::staged_bytes(
        internal::plan_save("", shards, {}, ranks_.rank, ranks_.size), staging_bytes_);
    begin([this, bytes] {
      try {
        staging_.reserve(bytes);
      } catch (const std::exception& error) {  // save() will report it on all ranks
        log_debug(describe(error));
      }
    });
  }

  std::optional<Result> save(const std::string& dir, const Shards& shards, SaveOptions options) {
    const auto start = Clock::now();
    auto before = wait();
    auto job = std::make_shared<internal::SaveJob>(
        internal::plan_save(dir, shards, options, ranks_.rank, ranks_.size));
    try {
      staging_.copy(*job, staging_bytes_);
    } catch (const std::exception& error) {  // the other ranks are told when they write
      job->refused = as_error(error);
    }
    bool all_copied = true;
    for (const auto& file : job->files) all_copied = all_copied && !file.image.empty();
    // Without the lock: there is no task, so the thread does not look at it.
    released_ = all_copied;
    job->released = [this] { release(); };
    {
      const std::scoped_lock lock(mutex_);
      stall_ = {};
    }
    begin([this, job, start] { write(*job, start); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return released_; });
    stall_ = Clock::now() - start;
    // The thread may have ended before: its result then lacks this.
    if (result_) result_->stall = stall_;
    return before;
  }

  std::optional<Result> poll() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(result_, std::nullopt);
  }

  std::optional<Result> wait() {
    wait_until_idle();
    return poll();
  }

 private:
  // Of the thread, if it was started.
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void begin(std::function<void()> task) {
    {
      const std::scoped_lock lock(mutex_);
      task_ = std::move(task);
    }
    changed_.notify_all();
  }

  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !task_; });
  }

  void release() {
    {
      const std::scoped_lock lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }

  void write(const internal::SaveJob& job, Clock::time_point start) {
    Result result{.step = job.step, .folder = {}, .error = {}, .bytes = bytes_of(job)};
    try {
      result.folder = internal::run_save(job, ranks_);
    } catch (const Error& error) {
      result.error = error;
    } catch (const std::exception& error) {
      result.error = Error(code_of(error), "the checkpoint of step " + std::to_string(job.step) +
                                               " is not saved: " + describe(error));
    }
    result.whole = Clock::now() - start;
    const std::scoped_lock lock(mutex_);
    result.stall = stall_;
    result_ = std::move(result);
    released_ = true;
  }

  // The main function of the thread.
  void work() {
    // libtorch's first call in a thread ends the process if there is no memory for the thread's
    // state. The first save may be at such a time.
    c10::AutogradState::get_tls_state();
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return task_ || ending_; });
        if (!task_) return;
        task = task_;
      }
      task();
      {
        const std::scoped_lock lock(mutex_);
        task_ = nullptr;
      }
      changed_.notify_all();
    }
  }

  const Group group_;
  const internal::Ranks ranks_;
  const std::int64_t staging_bytes_;
  internal::Staging staging_;  // the thread's during a task, else the caller's
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // runs or waits; the mutex guards this and all below
  std::optional<Result> result_;
  std::chrono::nanoseconds stall_{0};
  bool released_ = true, ending_ = false;
  std::thread thread_;  // last, since it uses the other members
};

AsyncSaver::AsyncSaver(const Group& group, std::int64_t staging_bytes)
    : impl_(std::make_unique<Impl>(group, staging_bytes)) {}
AsyncSaver::~AsyncSaver() = default;
void AsyncSaver::reserve(const Shards& shards) { impl_->reserve(shards); }
std::optional<AsyncSaver::Result> AsyncSaver::save(const std::string& dir, const Shards& shards,
                                                   SaveOptions options) {
  return impl_->save(dir, shards, options);
}
std::optional<AsyncSaver::Result> AsyncSaver::poll() { return impl_->poll(); }
std::optional<AsyncSaver::Result> AsyncSaver::wait() { return impl_->wait(); }

Latest latest(const std::string& dir, const Group& group) {
  return internal::find_latest(dir, internal::ranks_of(group));
}

}  // namespace weft::checkpoint
