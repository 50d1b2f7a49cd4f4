#include "weft/launch/internal/meeting_point.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <random>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  in_port_t& port() {
    return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  }
};

Address resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0)
    throw Error(Errc::kBadConfig, "--rdzv-endpoint " + host + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  return address;
}

// A listening socket; none, with errno, if the address is not this host's or is in use.
Fd listen_at(const Address& address) {
  Fd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), address.get(), address.size) == 0 &&
      ::listen(socket.get(), SOMAXCONN) == 0)
    return socket;
  return Fd();
}

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

std::string address_of(const Fd& listener) {
  Address address;
  address.size = sizeof address.storage;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return text_of(address);
}

}  // namespace

MeetingPoint find_meeting_point(const std::string& host, int port) {
  const Address endpoint = resolve(host, port);
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
  point.address = address_of(point.listener);
  return point;
}

}  // namespace weft::launch::internal
