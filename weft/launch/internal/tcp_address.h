// An address at which the launcher listens.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "weft/launch/process.h"

namespace weft::launch::internal {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  in_port_t& port() {
    return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  }
};

// The first address of the host. Throws Error(kBadConfig), which names the flag that gave it.
Address resolve(const std::string& flag, const std::string& host, int port);
// Throws Error(kBadConfig) if this machine has no way to the address, as with a loopback interface
// that is down.
void require_route(const std::string& host, const Address& address);
// Throws Error(kBadConfig) if a host name leads to the loopback interface, where other nodes do not
// reach it. An address or a name of localhost says that all nodes are on this machine.
void require_reachable(const std::string& flag, const std::string& host, const Address& address);
// A listening socket; none, with errno, if the address is not this host's or is in use.
Fd listen_at(const Address& address);
// The address as a number, without its port.
std::string host_of(const Address& address);
// The address of a socket.
Address address_of(const Fd& socket);

}  // namespace weft::launch::internal
