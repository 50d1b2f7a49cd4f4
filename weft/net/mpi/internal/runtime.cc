#include "weft/net/mpi/internal/runtime.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "weft/base/log.h"
#include "weft/base/text/variables.h"
#include "weft/net/mpi/internal/plugin.h"

namespace weft::net::mpi::internal {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kTick = 10ms;
constexpr auto kGoodbyes = 100ms;
constexpr auto kFinalize = 10s;  // time for all ranks to reach MPI_Finalize

// Waits between two polls: spins, then yields, then sleeps. MPI moves data only while it is called,
// so sleeping starts long after the transfer should be complete; then the wait is for a peer.
class Patience {
 public:
  explicit Patience(std::size_t bytes) : asleep_(2ms + std::chrono::nanoseconds(4 * bytes)) {}
  void pause() {
    if (++polls_ < spins()) return;
    if (polls_ % 16 != 0) return void(sched_yield());
    const auto now = Clock::now();
    if (polls_ < spins() + 16) begun_ = now;
    if (now - begun_ < asleep_) return void(sched_yield());
    std::this_thread::sleep_for(50us);
  }

 private:
  // No spinning with a single processor, since the peer needs it.
  static int spins() {
    static const int spins = std::thread::hardware_concurrency() > 1 ? 512 : 0;
    return spins;
  }

  std::chrono::nanoseconds asleep_;
  int polls_ = 0;
  Clock::time_point begun_{};
};

}  // namespace

Runtime& Runtime::get(Deadline deadline, Load load) {
  static Runtime* runtime = new Runtime;  // never destroyed: endpoints may outlive main()
  static std::mutex starting;
  const std::lock_guard lock(starting);
  if (runtime->table_ == nullptr) {
    runtime->start(deadline, load);
  } else if (runtime->has_failed()) {
    throw Error(Errc::kAborted, "MPI is no longer used: MPI_Init did not end before its deadline",
                {"MPI_Init", -1, -1});
  }
  return *runtime;
}

bool Runtime::has_failed() const {
  const std::lock_guard lock(mutex_);
  return state_ == kFailed;
}

void Runtime::start(Deadline deadline, Load load) {
  const Table& table = load();
  std::unique_lock lock(mutex_);
  state_ = kStarting;
  table_ = &table;
  std::thread([this] { work(); }).detach();
  if (!changed_.wait_until(lock, deadline.when(), [this] { return state_ != kStarting; })) {
    // MPI's thread may still set rank_ and size_: get() refuses from now on, as table_ stays.
    state_ = kFailed;
    throw Error(Errc::kTimeout,
                "MPI_Init did not end before the deadline: not all ranks that the launcher started "
                "have called it",
                {"MPI_Init", -1, -1});
  }
  if (state_ == kFailed) {
    table_ = nullptr;
    std::rethrow_exception(start_error_);
  }
  std::atexit([] { get().finish(); });
  std::at_quick_exit([] { get().finish(); });
}

void Runtime::initialize() {
  const bool funneled = variable("WEFT_MPI_THREADS") == "funneled";
  std::int32_t level = kSingle, before = 0;
  check(table_->initialize(funneled ? kFunneled : kMultiple, &level, &before), "MPI_Init_thread");
  check(table_->world(&rank_, &size_), "MPI_Comm_size");
  ours_ = before == 0;
  multiple_ = level == kMultiple && !funneled;
  if (!ours_ && level < kSerialized) {
    throw Error(Errc::kUnavailable,
                "transport mpi: the program has initialized MPI for one thread only; call "
                "MPI_Init_thread with MPI_THREAD_MULTIPLE, or let weft initialize MPI",
                {"mpi", -1, -1});
  }
  char version[100];
  table_->version(version, sizeof version);
  log_debug("MPI", {{"version", version},
                    {"rank", rank_},
                    {"size", size_},
                    {"threads", multiple_ ? "multiple" : "one"}});
}

void Runtime::check(int code, const char* operation) const {
  if (code == 0) return;
  char text[256];
  table_->describe(code, text, sizeof text);
  throw Error(Errc::kUnavailable, std::string("MPI: ") + text, {operation, rank_, -1});
}

void Runtime::refuse() const {
  if (!stopped()) return;
  const std::lock_guard lock(mutex_);
  throw Error(Errc::kAborted, "MPI is no longer used: " + why_stopped_, {"mpi", rank_, -1});
}

void Runtime::stop(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (stopped()) return;
  why_stopped_ = why;
  stopped_.store(true, std::memory_order_release);
}

void Runtime::add(std::shared_ptr<Background> task) {
  const std::lock_guard lock(mutex_);
  background_.push_back(std::move(task));
}

void Runtime::run(const std::function<bool()>& poll, std::size_t bytes) {
  if (multiple_) {
    for (Patience patience(bytes);; patience.pause()) {
      refuse();
      if (poll()) return;
    }
  }
  refuse();
  Job job{&poll};
  std::unique_lock lock(mutex_);
  jobs_.push_back(&job);
  wake_.notify_one();
  changed_.wait(lock, [&] { return job.done; });
  if (job.error) std::rethrow_exception(job.error);
}

void Runtime::block(const std::function<void()>& call, const char* operation, Deadline deadline) {
  refuse();
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  const auto state = std::make_shared<State>();
  // If only MPI's thread may call MPI, that thread waits in the call, and all groups of the process
  // wait too.
  std::thread([this, state, call] {
    std::exception_ptr error;
    try {
      run([&] { return call(), true; }, 0);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(state->mutex);
    state->done = true;
    state->error = error;
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  if (!state->changed.wait_until(lock, deadline.when(), [&] { return state->done; })) {
    stop(std::string(operation) + " did not end before its deadline");
    throw Error(Errc::kTimeout, "not all ranks of the group arrived before the deadline",
                {operation, rank_, -1});
  }
  if (state->error) std::rethrow_exception(state->error);
}

// Serves the groups that this process has left until the goodbyes of all their peers have arrived,
// for at most kGoodbyes. Then finalizes MPI.
void Runtime::take_leave(std::unique_lock<std::mutex>& lock) {
  for (const auto end = Deadline::in(kGoodbyes);
       !background_.empty() && !stopped() && !end.passed();) {
    lock.unlock();
    look_after();
    sched_yield();
    lock.lock();
  }
  const auto tasks = std::move(background_);
  lock.unlock();
  const bool healthy = !stopped();
  stop("the process is ending");
  if (healthy) {
    for (const auto& task : tasks) task->close();
    if (ours_) table_->finalize();
  }
  lock.lock();
}

// MPI's thread. It initializes and finalizes MPI. In between, it serves idle groups and, if no
// other thread may call MPI, makes all calls.
void Runtime::work() {
  std::exception_ptr failed;
  try {
    initialize();  // without the lock: start() waits until its deadline only
  } catch (...) {
    failed = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  if (state_ != kStarting) return;  // too late
  state_ = failed ? kFailed : kRunning;
  start_error_ = failed;
  changed_.notify_all();
  if (failed) return;
  Patience patience(0);
  while (state_ == kRunning) {
    if (jobs_.empty()) {
      patience = Patience(0);
      wake_.wait_for(lock, kTick);
      if (jobs_.empty() && state_ == kRunning) {
        lock.unlock();
        look_after();
        lock.lock();
      }
    } else if (!work_once(lock)) {
      lock.unlock();
      patience.pause();
      lock.lock();
    }
  }
  take_leave(lock);
  state_ = kFinished;
  changed_.notify_all();
}

// Polls each job once. Returns true if one has ended.
bool Runtime::work_once(std::unique_lock<std::mutex>& lock) {
  bool ended = false;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = **at;  // its owner waits for it, and only this thread removes jobs
    lock.unlock();
    bool done = false;
    try {
      refuse();
      done = (*job.poll)();
    } catch (...) {
      job.error = std::current_exception();
      done = true;
    }
    lock.lock();
    if (!done) {
      ++at;
      continue;
    }
    at = jobs_.erase(at);
    job.done = ended = true;
    changed_.notify_all();
  }
  return ended;
}

void Runtime::look_after() {
  if (stopped()) return;
  std::list<std::shared_ptr<Background>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks = background_;
  }
  for (const auto& task : tasks) {
    if (!task->look_after()) continue;
    const std::lock_guard lock(mutex_);
    background_.remove(task);
  }
}

void Runtime::finish() noexcept {
  std::unique_lock lock(mutex_);
  if (state_ != kRunning) return;
  state_ = kFinishing;
  wake_.notify_all();
  // If ranks do not arrive, the launcher ends the rest of the job.
  changed_.wait_for(lock, kFinalize, [this] { return state_ == kFinished; });
}

}  // namespace weft::net::mpi::internal
