#include "weft/launch/internal/meeting_point.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "weft/base/error.h"
#include "weft/launch/internal/tcp_address.h"

namespace weft::launch::internal {
namespace {

// This host's address on the way to another one.
Address own_address(const Address& other) {
  const Fd probe(::socket(other.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address own;
  own.size = sizeof own.storage;
  if (::connect(probe.get(), other.get(), other.size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0)
    throw Error(Errc::kUnavailable,
                std::string("the --rdzv-endpoint cannot be reached: ") + std::strerror(errno));
  return own;
}

std::string text_of(const Address& address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(address.get(), address.size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  const bool is_v6 = address.storage.ss_family == AF_INET6;
  return (is_v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

}  // namespace

std::string own_host(const std::string& host, int port) {
  return host_of(own_address(resolve("--rdzv-endpoint", host, port)));
}

MeetingPoint find_meeting_point(const std::string& host, int port) {
  const Address endpoint = resolve("--rdzv-endpoint", host, port);
  require_reachable("--rdzv-endpoint", host, endpoint);
  MeetingPoint point;
  point.listener = listen_at(endpoint);
  const bool is_first = static_cast<bool>(point.listener);
  if (!is_first) {
    Address own = errno == EADDRINUSE ? endpoint : own_address(endpoint);
    // The same port, so that the node can be an endpoint for others later, or a free one.
    own.port() = htons(static_cast<std::uint16_t>(port));
    point.listener = listen_at(own);
    own.port() = 0;
    if (!point.listener) point.listener = listen_at(own);
    if (!point.listener)
      throw Error(Errc::kUnavailable,
                  "cannot listen at " + text_of(own) + ": " + std::strerror(errno));
    point.seeds = {text_of(endpoint)};
    point.number = std::random_device()() % 0x7fffffffU + 1;
  }
  point.address = text_of(address_of(point.listener));
  return point;
}

}  // namespace weft::launch::internal
