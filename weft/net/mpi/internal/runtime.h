// The MPI of this process: loaded and initialized once, called by any thread or, where it cannot
// stand that, by one thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/net/mpi/internal/abi.h"

namespace weft::net::mpi::internal {

// What is looked after while nobody waits: a hundred times a second, by MPI's thread.
class Background {
 public:
  virtual ~Background() = default;
  // True: no more is to be done. Does not throw.
  virtual bool look_after() noexcept = 0;
  // MPI is about to be finalised.
  virtual void close() noexcept = 0;
};

class Runtime {
 public:
  // Starts MPI on the first call. Throws kUnavailable with the reason where there is none; a later
  // call tries again. Throws kTimeout where MPI_Init does not end (it waits for all ranks that the
  // launcher started), and then MPI is stopped.
  static Runtime& get(Deadline deadline = Deadline::in(std::chrono::minutes(5)));

  const Table& table() const { return *table_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // True: every thread may call MPI, and waiting threads make the progress.
  bool multiple() const { return multiple_; }

  // Calls poll() where MPI may be called, again and again until it gives true. What it throws
  // passes. A wait that is much longer than the transfer of `bytes` should take goes to sleep
  // between polls. Throws kAborted after stop().
  void run(const std::function<bool()>& poll, std::size_t bytes);
  // Runs an MPI call that blocks. Throws kTimeout, and then MPI is stopped.
  void block(const std::function<void()>& call, const char* operation, Deadline deadline);
  // Throws what an MPI error code means.
  void check(int code, const char* operation) const;

  // Ends all of weft's calls to MPI in this process, for good. The first reason counts. Called
  // where MPI may be called.
  void stop(const std::string& why);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  void add(std::shared_ptr<Background> task);

 private:
  struct Job {
    const std::function<bool()>* poll;
    bool done = false;
    std::exception_ptr error;
  };

  Runtime() = default;
  void start(Deadline deadline);
  void initialize();
  void work();
  bool work_once(std::unique_lock<std::mutex>& lock);
  void take_leave(std::unique_lock<std::mutex>& lock);
  void look_after();
  void finish() noexcept;
  void refuse() const;

  const Table* table_ = nullptr;
  int rank_ = 0, size_ = 1;
  bool multiple_ = false, ours_ = true;  // ours: initialized, and to be finalised, by weft
  std::atomic<bool> stopped_{false};

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_, changed_;
  std::string why_stopped_;
  std::list<Job*> jobs_;  // for MPI's thread
  std::list<std::shared_ptr<Background>> background_;
  enum { kStarting, kRunning, kFailed, kFinishing, kFinished } state_ = kStarting;
  std::exception_ptr start_error_;
};

}  // namespace weft::net::mpi::internal
