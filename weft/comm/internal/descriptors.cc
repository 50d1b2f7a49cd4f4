#include "weft/comm/internal/descriptors.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::comm::internal {

std::size_t descriptors_of_recovery(std::size_t open, std::size_t sockets) {
  // Measured: when the last of 5 groups of 4 ranks has connected, rank 0 has 70 open, of which 46
  // are sockets. In a recovery, 3 groups form before the old ones are closed, and at most 102 are
  // open.
  constexpr std::size_t kOthers = 10;
  return open + 2 * sockets / 3 + kOthers;
}

void reserve_descriptors_for_recovery() {
  std::size_t open = 0, sockets = 0;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc/self/fd", ignored), end; at != end; ++at) {
    ++open;
    int domain = 0;
    socklen_t size = sizeof domain;
    const int fd = std::atoi(at->path().filename().c_str());
    const bool is_socket = ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0;
    sockets += is_socket && (domain == AF_INET || domain == AF_INET6);
  }
  const std::size_t needed = descriptors_of_recovery(open, sockets);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur) return;
  if (needed > limit.rlim_max) {
    throw Error(Errc::kBadConfig,
                "a rank of this job needs " + std::to_string(needed) +
                    " open files to go on without a lost one, and may have " +
                    std::to_string(limit.rlim_max) + "; raise the limit (ulimit -n)",
                {"init"});
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0)
    log_debug("the limit of open files is raised",
              {{"from", std::to_string(before)}, {"to", std::to_string(limit.rlim_cur)}});
}

}  // namespace weft::comm::internal
