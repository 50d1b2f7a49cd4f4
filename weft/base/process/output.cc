#include "weft/base/process/output.h"

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

namespace weft {

std::optional<Error> lost_output() {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::cout && std::ferror(stdout) == 0) return std::nullopt;
  // The reason of an earlier failure is not known any more.
  return Error(Errc::kUnavailable,
               "output was lost: cannot write to standard output" +
                   (reason != 0 ? std::string(": ") + std::strerror(reason) : std::string()));
}

void outlive_readers() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = [](int) {};  // programs would inherit SIG_IGN
  now.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &now, nullptr);
}

}  // namespace weft
