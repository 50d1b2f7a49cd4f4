#include "weft/launch/internal/tcp_address.h"

#include <netdb.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

bool is_loopback(const Address& address) {
  if (address.storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
  return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

}  // namespace

Address resolve(const std::string& flag, const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) throw Error(Errc::kBadConfig, flag + " " + host + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  return address;
}

void require_route(const std::string& host, const Address& address) {
  const Fd probe(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), address.get(), address.size) == 0) return;
  throw Error(Errc::kBadConfig,
              host + " cannot be reached from this machine: " + std::strerror(errno) +
                  "; is the network interface up (ip link set lo up)?");
}

void require_reachable(const std::string& flag, const std::string& host, const Address& address) {
  const bool is_number = host.find_first_not_of("0123456789.") == std::string::npos ||
                         host.find(':') != std::string::npos;
  const bool is_local = host.starts_with("localhost") || host.ends_with("localhost");
  if (is_number || is_local || !is_loopback(address)) return;
  throw Error(Errc::kBadConfig, flag + " " + host + ": this host resolves the name to " +
                                    host_of(address) +
                                    ", which other nodes do not reach; give the address of the "
                                    "first node, or correct /etc/hosts");
}

Fd listen_at(const Address& address) {
  Fd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), address.get(), address.size) == 0 &&
      ::listen(socket.get(), SOMAXCONN) == 0)
    return socket;
  const int reason = errno;
  socket.reset();
  errno = reason;
  return Fd();
}

std::string host_of(const Address& address) {
  char host[NI_MAXHOST];
  return ::getnameinfo(address.get(), address.size, host, sizeof host, nullptr, 0,
                       NI_NUMERICHOST) == 0
             ? host
             : "";
}

Address address_of(const Fd& socket) {
  Address address;
  address.size = sizeof address.storage;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

}  // namespace weft::launch::internal
