// Store, servers and workers as forked processes, for tests that kill them.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "weft/base/error.h"
#include "weft/store/client.h"
#include "weft/store/server.h"

namespace weft::ps::testing {

// A forked process that runs a function; killed with this. Fork before the process has threads.
class Child {
 public:
  Child() = default;
  explicit Child(const std::function<void()>& run) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      run();
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", describe(error).c_str());
      ::_exit(1);
    }
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Child() { kill(); }

  pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // True when the process has ended with status 0; false while it runs. Throws if it failed.
  bool has_ended() {
    if (pid_ <= 0) return true;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == 0) return false;
    pid_ = -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      throw Error(Errc::kInternal, "a child process failed");
    return true;
  }

 private:
  pid_t pid_ = -1;
};

// The store of a job on one node.
class ForkedStore {
 public:
  ForkedStore() {
    store::LocalListener listener = store::listen_locally();
    name_ = listener.name;
    int ends[2] = {};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw Error(Errc::kUnavailable, "no socket pair");
    lifeline_ = UniqueFd(ends[0]);
    UniqueFd theirs(ends[1]);
    child_ = Child([&] {
      lifeline_.reset();
      store::ServerOptions options;
      options.clients = std::move(listener.fd);
      options.lifeline = std::move(theirs);
      options.journal = UniqueFd(::memfd_create("journal", MFD_CLOEXEC));
      store::serve(std::move(options));
    });
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  UniqueFd lifeline_;
  Child child_;
};

}  // namespace weft::ps::testing
