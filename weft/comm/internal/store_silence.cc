#include "weft/comm/internal/store_silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <string>

namespace weft::comm::internal {
namespace {

// The port of the peer; 0 if the descriptor is not a connection over TCP.
int peer_port(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return 0;
  if (peer.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(peer).sin_port);
  if (peer.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(peer).sin6_port);
  return 0;
}

}  // namespace

void limit_silence_of_store(int port, std::chrono::milliseconds limit) {
  const auto ms = static_cast<unsigned>(limit.count());
  std::error_code none;  // without /proc there is no limit
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd >= 0 && peer_port(fd) == port)
      ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
  }
}

}  // namespace weft::comm::internal
