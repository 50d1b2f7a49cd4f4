#include "weft/base/process/start.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"

namespace weft {

void open_standard_descriptors() noexcept {
  for (int fd = 0; fd <= 2; ++fd) {
    // open() takes the lowest free number, and those below `fd` are open.
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", O_RDWR) != fd) return;
  }
}

void ignore_file_size_signal() noexcept {
  struct sigaction now {};
  if (::sigaction(SIGXFSZ, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
    ::signal(SIGXFSZ, SIG_IGN);
}

std::string temporary_folder() {
  const char* const set = variable_or_null("TMPDIR");
  const std::string folder = set != nullptr ? set : "/tmp";
  struct stat there {};
  const int failed = ::stat(folder.c_str(), &there) != 0          ? errno
                     : !S_ISDIR(there.st_mode)                    ? ENOTDIR
                     : ::access(folder.c_str(), W_OK | X_OK) != 0 ? errno
                                                                  : 0;
  if (failed == 0) return folder;
  throw Error(Errc::kBadConfig, "no temporary files can be made in " + folder + ": " +
                                    std::strerror(failed) +
                                    "; set TMPDIR to a folder that this user can write to");
}

void end_process(int code) noexcept {
  std::cout.flush();
  std::fflush(nullptr);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(code);
#else
  std::quick_exit(code);
#endif
}

}  // namespace weft
