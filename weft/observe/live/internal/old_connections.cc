#include "weft/observe/live/internal/old_connections.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace weft::observe {
namespace {

int option_of(int fd, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

bool is_connection(int fd) {
  const int domain = option_of(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && option_of(fd, SO_ACCEPTCONN) == 0;
}

}  // namespace

void OldConnections::look(int looks) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  std::map<Socket, int> now;
  for (int fd = 0; fd < static_cast<int>(limit.rlim_cur); ++fd) {
    struct stat status {};
    if (!is_connection(fd) || ::fstat(fd, &status) != 0) continue;
    const Socket socket{fd, status.st_ino};
    const auto before = seen_.find(socket);
    const int count = before == seen_.end() ? 1 : before->second + 1;
    if (count > looks) ::shutdown(fd, SHUT_RDWR);
    now.emplace(socket, count);
  }
  seen_ = std::move(now);
}

}  // namespace weft::observe
