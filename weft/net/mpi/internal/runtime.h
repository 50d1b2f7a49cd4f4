// Loads and initializes the MPI of this process once. If MPI does not support calls from every
// thread, one dedicated thread makes all calls.
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
#include "weft/net/mpi/internal/plugin.h"

namespace weft::net::mpi::internal {

// Background work while no thread waits. MPI's thread calls it a hundred times per second.
class Background {
 public:
  virtual ~Background() = default;
  // Returns true if there is no more work. Does not throw.
  virtual bool look_after() noexcept = 0;
  // Called before MPI is finalized.
  virtual void close() noexcept = 0;
};

class Runtime {
 public:
  // Returns the plug-in's functions, or throws.
  using Load = const Table& (*)();

  // Starts MPI on the first call. Throws kUnavailable with the reason if there is no MPI; a later
  // call tries again. Throws kTimeout if MPI_Init does not end (it waits for all ranks that the
  // launcher started); later calls then throw kAborted.
  static Runtime& get(Deadline deadline = Deadline::in(std::chrono::minutes(5)),
                      Load load = &load_plugin);

  const Table& table() const { return *table_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // True if every thread may call MPI. Waiting threads then make progress.
  bool multiple() const { return multiple_; }

  // Calls poll() repeatedly, on a thread that may call MPI, until it returns true. Exceptions of
  // poll() pass through. A wait that is much longer than the expected transfer time of `bytes`
  // sleeps between polls. Throws kAborted after stop().
  void run(const std::function<bool()>& poll, std::size_t bytes);
  // Runs an MPI call that blocks. Throws kTimeout, and then MPI is stopped.
  void block(const std::function<void()>& call, const char* operation, Deadline deadline);
  // Throws the error for an MPI error code.
  void check(int code, const char* operation) const;

  // Permanently ends weft's calls to MPI in this process. The first reason is kept. Call it on a
  // thread that may call MPI.
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
  void start(Deadline deadline, Load load);
  bool has_failed() const;
  void initialize();
  void work();
  bool work_once(std::unique_lock<std::mutex>& lock);
  void take_leave(std::unique_lock<std::mutex>& lock);
  void look_after();
  void finish() noexcept;
  void refuse() const;

  const Table* table_ = nullptr;
  int rank_ = 0, size_ = 1;
  bool multiple_ = false, ours_ = true;  // ours: weft initializes and finalizes MPI
  std::atomic<bool> stopped_{false};

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_, changed_;
  std::string why_stopped_;
  std::list<Job*> jobs_;  // jobs of MPI's thread
  std::list<std::shared_ptr<Background>> background_;
  enum { kStarting, kRunning, kFailed, kFinishing, kFinished } state_ = kStarting;
  std::exception_ptr start_error_;
};

}  // namespace weft::net::mpi::internal
