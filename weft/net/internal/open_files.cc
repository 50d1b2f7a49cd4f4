#include "weft/net/internal/open_files.h"

#include <dirent.h>
#include <sys/resource.h>

namespace weft::net::internal {

void allow_open_files(std::size_t more) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  // If not even this folder can be opened, nothing fits.
  if (DIR* const files = ::opendir("/proc/self/fd")) {
    std::size_t open = 0;
    while (::readdir(files) != nullptr) ++open;
    ::closedir(files);
    if (open + more <= limit.rlim_cur) return;
  }
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace weft::net::internal
