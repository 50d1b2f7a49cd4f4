// One child process: started in a process group of its own, watched through a pidfd, never left
// behind.
//
// The child dies with the thread that started it (PR_SET_PDEATHSIG), so start it from the thread
// that lives on. When a child ends, what is left of its process group is killed too. Not
// thread-safe. Throws Error(kUnavailable) when the system refuses a process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/deadline.h"

namespace weft::launch {

// Closes its descriptor; moves, does not copy.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct ExitStatus {
  bool signaled = false;
  int value = 0;  // exit code, or the signal's number

  bool ok() const { return !signaled && value == 0; }
  // As a shell reports it: 128 + n for signal n.
  int code() const { return signaled ? 128 + value : value; }
  // "exit code 3", "SIGKILL (signal 9)"
  std::string describe() const;
};

// "SIGTERM" for 15; "signal 40" where there is no name.
std::string signal_name(int number);

struct ProcessOptions {
  // A program (looked up in PATH) and its arguments; or, where empty, a function that runs in a
  // copy of this process: its result is the exit code, no destructor of a static and no atexit
  // handler runs. Neither may be started while this process has other threads.
  std::vector<std::string> argv;
  std::function<int()> call;
  // NAME=value, on top of this process's environment.
  std::vector<std::string> environment;
  // Descriptors to keep, under the same numbers. A program gets no others; a function also keeps
  // those that are not close-on-exec.
  std::vector<int> inherit;
  int stdin_fd = 0, stdout_fd = 1, stderr_fd = 2;
  bool dies_with_parent = true;
  // Runs in the child before its program or function does, when its process group exists.
  // Descriptors of the parent are still open.
  std::function<void()> before;
};

class Process {
 public:
  // Returns when the program runs; throws Error(kInvalidArgument), naming it and the reason, when
  // it cannot be executed.
  explicit Process(const ProcessOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  // Kills the group at once and reaps the child if it still runs.
  ~Process();

  pid_t pid() const { return pid_; }
  // Readable when the child has ended.
  int pidfd() const { return pidfd_.get(); }

  // The child's end if it has ended, without waiting; the same again on later calls.
  std::optional<ExitStatus> poll();
  std::optional<ExitStatus> wait(Deadline deadline);
  // To the whole process group; nothing happens when the child has ended.
  void signal(int number);
  // SIGTERM to the group, after the grace SIGKILL.
  ExitStatus terminate(std::chrono::milliseconds grace = std::chrono::seconds(30));

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  std::optional<ExitStatus> status_;
};

}  // namespace weft::launch
