#include "weft/launch/internal/stop_signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

// The kernel keeps blocked signals even if the process ignores them.
std::vector<int> without_ignored(std::vector<int> numbers) {
  std::erase_if(numbers, [](int number) {
    struct sigaction now {};
    return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
  });
  return numbers;
}

sigset_t set_of(const std::vector<int>& numbers) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) ::sigaddset(&set, number);
  return set;
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& numbers) : numbers_(without_ignored(numbers)) {
  const sigset_t set = set_of(numbers_);
  fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_)
    throw Error(Errc::kUnavailable, std::string("cannot wait for signals: ") + std::strerror(errno),
                {"launch"});
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

StopSignals::~StopSignals() {
  const sigset_t set = set_of(numbers_);
  const timespec at_once{};
  while (::sigtimedwait(&set, nullptr, &at_once) > 0) {
  }
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<int> StopSignals::next() {
  signalfd_siginfo info{};
  const bool is_one = ::read(fd_.get(), &info, sizeof info) == sizeof info;
  return is_one ? std::optional(static_cast<int>(info.ssi_signo)) : std::nullopt;
}

void ignore_stop_signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    ::signal(number, SIG_IGN);
}

}  // namespace weft::launch::internal
