#include "weft/launch/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>

#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/base/process/output.h"

namespace weft::launch {
namespace {

// SIGKILL cannot be ignored. Only a device that is stuck in the kernel delays the end; then the
// child is left to the system.
constexpr auto kReapLimit = std::chrono::seconds(10);

// Environment of the child: this process's environment with `changes`.
std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
  std::map<std::string, std::string> merged;
  const auto put = [&](const std::string& entry) {
    merged[entry.substr(0, entry.find('='))] = entry;
  };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) put(*entry);
  for (const auto& entry : changes) put(entry);
  std::vector<std::string> result;
  for (auto& [name, entry] : merged) result.push_back(std::move(entry));
  return result;
}

// If SIGCHLD is ignored, as some parents leave it, the system reaps children, and their ends are
// lost.
void keep_ends_of_children() {
  struct sigaction now {};
  if (::sigaction(SIGCHLD, nullptr, &now) == 0 && now.sa_handler == SIG_IGN)
    ::signal(SIGCHLD, SIG_DFL);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

void keep_on_exec(int fd) { ::fcntl(fd, F_SETFD, ::fcntl(fd, F_GETFD) & ~FD_CLOEXEC); }

// Does what exec would do: a function in the child gets the same descriptors as a program.
void close_what_exec_closes() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  std::vector<int> closing;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder) &&
        (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0)
      closing.push_back(fd);
  }
  ::closedir(folder);
  for (const int fd : closing) ::close(fd);
}

// Result of read(); nullopt: nothing has come in time.
std::optional<ssize_t> read_before(Deadline deadline, int fd, int* value) {
  for (;;) {
    pollfd state{fd, POLLIN, 0};
    const int ready = ::poll(&state, 1, deadline.left_ms());
    if (ready > 0) {
      const ssize_t got = ::read(fd, value, sizeof *value);
      if (got >= 0 || errno != EINTR) return got;
    }
    if (deadline.passed()) return std::nullopt;
  }
}

// Runs first in the child. noexcept, as all that runs there: an exception must not reach the code
// of the parent.
void settle_in(const ProcessOptions& options, pid_t parent) noexcept {
  ::setpgid(0, 0);
  if (options.dies_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before the line above; then no signal will be sent.
    if (::getppid() != parent) ::_exit(128 + SIGKILL);
  }
  if (options.before) options.before();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.stdin_fd != 0) ::dup2(options.stdin_fd, 0);
  if (options.stdout_fd != 1) ::dup2(options.stdout_fd, 1);
  if (options.stderr_fd != 2) ::dup2(options.stderr_fd, 2);
}

[[noreturn]] void run_call(const ProcessOptions& options) noexcept {
  for (const int fd : options.inherit) keep_on_exec(fd);
  close_what_exec_closes();
  for (const auto& entry : options.environment) {
    const auto equals = entry.find('=');
    ::setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
  int code = exit_code(Errc::kInternal);
  try {
    code = options.call();
  } catch (const std::exception& error) {
    print_error(error);
    code = exit_code(code_of(error));
  }
  if (const auto lost = lost_output(); lost && code == 0) {
    print_error(*lost);
    code = exit_code(lost->code());
  }
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

// Reports errno through the pipe if it returns.
[[noreturn]] void run_program(const ProcessOptions& options, char* const* argv, char* const* envp,
                              int failure) {
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  for (const int fd : options.inherit) keep_on_exec(fd);
  ::execvpe(argv[0], argv, envp);
  const int reason = errno;
  [[maybe_unused]] const auto written = ::write(failure, &reason, sizeof reason);
  ::_exit(127);
}

// The reason of the system, with the limit to raise.
std::string no_process(int reason) {
  const std::string text = std::strerror(reason);
  if (reason == EAGAIN)
    return text + "; raise the limit of processes (ulimit -u, or the cgroup's pids.max)";
  return reason == ENOMEM ? text + "; raise the limit of memory, or start fewer ranks" : text;
}

}  // namespace

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
}

std::string ExitStatus::describe() const {
  return signaled ? signal_name(value) + " (signal " + std::to_string(value) + ")"
                  : "exit code " + std::to_string(value);
}

void require_descriptors(int count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  int open = 0;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc/self/fd", ignored), end; at != end; ++at)
    ++open;
  const auto needed = static_cast<rlim_t>(open + count);
  if (needed <= limit.rlim_cur) return;
  throw Error(Errc::kUnavailable, "the launcher needs " + std::to_string(needed) +
                                      " open files and may have " + std::to_string(limit.rlim_cur) +
                                      "; raise the limit (ulimit -n) or start fewer " + "ranks");
}

Process::Process(const ProcessOptions& options) {
  WEFT_REQUIRE(options.argv.empty() != !options.call,
               "a process needs either a program or a function");
  const auto environment = merged_environment(options.environment);
  const auto envp = pointers(environment), argv = pointers(options.argv);
  int failure[2];
  if (::pipe2(failure, O_CLOEXEC) != 0)
    throw Error(Errc::kUnavailable,
                std::string("cannot create a pipe for a child: ") + std::strerror(errno));
  const Fd failure_in(failure[0]);
  Fd failure_out(failure[1]);

  keep_ends_of_children();
  std::fflush(nullptr);  // otherwise both processes would print the buffered output
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    settle_in(options, parent);
    if (options.argv.empty()) run_call(options);
    run_program(options, argv.data(), envp.data(), failure_out.get());
  }
  if (pid_ < 0) throw Error(Errc::kUnavailable, "cannot create a process: " + no_process(errno));
  ::setpgid(pid_, pid_);  // the child does this too; the first call wins
  // By number: glibc 2.36 declares pidfd_open() without extern "C".
  pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));

  failure_out.reset();
  int reason = 0;
  // A process that was stopped before its program is one that hangs, like any other.
  const auto got = read_before(Deadline::in(options.start_limit), failure_in.get(), &reason);
  if (got == sizeof reason) {
    ::waitpid(pid_, nullptr, 0);
    const bool may_help = reason == EAGAIN || reason == ENOMEM || reason == ENFILE;
    throw Error(may_help ? Errc::kUnavailable : Errc::kInvalidArgument,
                "cannot start \"" + options.argv[0] + "\": " + no_process(reason));
  }
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(status_, other.status_);
  return *this;
}

Process::~Process() {
  if (pid_ < 0 || status_) return;
  signal(SIGKILL);
  wait(Deadline::in(kReapLimit));
}

std::optional<ExitStatus> Process::poll() {
  if (status_) return status_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0)
    return std::nullopt;
  // Called before reaping, since the group's number cannot be reused until then.
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  status_ = ExitStatus{info.si_code != CLD_EXITED, info.si_status};
  return status_;
}

bool Process::is_stopped() const {
  siginfo_t info{};
  return !status_ &&
         ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0 && info.si_code == CLD_STOPPED;
}

std::optional<ExitStatus> Process::wait(Deadline deadline) {
  while (!poll() && !deadline.passed()) {
    pollfd ended{pidfd_.get(), POLLIN, 0};
    ::poll(&ended, 1, deadline.left_ms());
  }
  return poll();
}

void Process::signal(int number) {
  if (!status_) ::kill(-pid_, number);
}

ExitStatus Process::terminate(std::chrono::milliseconds grace) {
  signal(SIGTERM);
  if (const auto ended = wait(Deadline::in(grace))) return *ended;
  signal(SIGKILL);
  return wait(Deadline::in(kReapLimit)).value_or(ExitStatus{true, SIGKILL});
}

}  // namespace weft::launch
