// One child process: started in its own process group, watched by a pidfd, never left behind.
//
// The child dies with the thread that started it (PR_SET_PDEATHSIG), so start it from a long-lived
// thread. When a child ends, the rest of its process group is killed. If this process ignores
// SIGCHLD, the first Process ends that. Not thread-safe. Throws Error(kUnavailable) if the system
// cannot create a process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/file.h"

namespace weft::launch {

using Fd = UniqueFd;

// Throws Error(kUnavailable), with the limit to set, if this process may not open so many more
// descriptors.
void require_descriptors(int count);

struct ExitStatus {
  bool signaled = false;
  int value = 0;  // exit code or signal number

  bool operator==(const ExitStatus&) const = default;
  bool ok() const { return !signaled && value == 0; }
  // As a shell reports it: 128 + n for signal n.
  int code() const { return signaled ? 128 + value : value; }
  // "exit code 3", "SIGKILL (signal 9)"
  std::string describe() const;
};

// "SIGTERM" for 15; "signal 40" for a signal without a name.
std::string signal_name(int number);

struct ProcessOptions {
  // A program (searched in PATH) and its arguments. If empty, a function that runs in a copy of
  // this process: its result is the exit code, and no static destructors or atexit handlers run.
  // Neither may be started while this process has other threads.
  std::vector<std::string> argv;
  std::function<int()> call;
  // NAME=value, added to this process's environment.
  std::vector<std::string> environment;
  // Descriptors to keep, with the same numbers. A program gets no others; a function also keeps
  // those without close-on-exec.
  std::vector<int> inherit;
  int stdin_fd = 0, stdout_fd = 1, stderr_fd = 2;
  bool dies_with_parent = true;
  std::chrono::milliseconds start_limit = std::chrono::seconds(2);  // most time to wait for it
  // Runs in the child before its program or function, after its process group was created.
  // Descriptors of the parent are still open.
  std::function<void()> before;
};

class Process {
 public:
  // Returns when the program runs, or after start_limit. Throws Error(kInvalidArgument), with its
  // name and the reason, if it cannot be executed.
  explicit Process(const ProcessOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  // Kills the group at once and reaps the child if it still runs. Waits at most 10 s for its end.
  ~Process();

  pid_t pid() const { return pid_; }
  // Descriptor that is readable once the child has ended.
  int pidfd() const { return pidfd_.get(); }

  // Returns the child's end if it has ended, without waiting. Later calls return the same.
  std::optional<ExitStatus> poll();
  std::optional<ExitStatus> wait(Deadline deadline);
  // True while a signal such as SIGSTOP has stopped the child.
  bool is_stopped() const;
  // Sends a signal to the whole process group. Does nothing if the child has ended.
  void signal(int number);
  // Leaves a child that does not end to the system: it counts as killed, and is not waited for.
  void leave() { status_ = ExitStatus{true, 9}; }
  // Sends SIGTERM to the group, and SIGKILL after the grace time. Waits at most 10 s longer.
  ExitStatus terminate(std::chrono::milliseconds grace = std::chrono::seconds(30));

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  std::optional<ExitStatus> status_;
};

}  // namespace weft::launch
