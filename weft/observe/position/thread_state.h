// What the kernel says of a thread of another process: whether it runs, sleeps or is stopped, and
// its processor time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace weft::observe {

struct ThreadState {
  enum class Kind {
    kGone,
    kRuns,     // On a processor, or waiting for one.
    kSleeps,   // In a system call, until something happens.
    kBlocked,  // In a system call that no signal ends, such as one for a disk.
    kStopped,  // By a signal, such as SIGSTOP.
    kTraced,   // By a debugger.
    kFrozen,   // By its control group.
  };
  Kind kind = Kind::kGone;
  std::chrono::nanoseconds cpu{};  // Processor time so far.
  std::string where = {};          // Function of the kernel in which it sleeps; empty if unknown.

  // True if it cannot run before somebody else lets it.
  bool is_held() const {
    return kind == Kind::kStopped || kind == Kind::kTraced || kind == Kind::kFrozen;
  }
  bool is_asleep() const { return kind == Kind::kSleeps || kind == Kind::kBlocked; }
};

// "stopped by a signal", "sleeps in futex_wait_queue", "runs".
std::string to_string(const ThreadState& state);

// Reads it from /proc. Costs some microseconds. A frozen control group is found only if
// /sys/fs/cgroup is mounted.
ThreadState read_thread_state(pid_t pid, pid_t thread);

}  // namespace weft::observe
