#include "weft/net/tcp/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "weft/base/text/numbers.h"

namespace weft::net::internal {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

std::optional<Address> parse_host(const std::string& host, int port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<std::uint16_t>(port));
    address.length = sizeof(sockaddr_in);
    return address;
  }
  if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<std::uint16_t>(port));
    address.length = sizeof(sockaddr_in6);
    return address;
  }
  return std::nullopt;
}

Address parse_address(const std::string& text) {
  const auto colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  int port = 0;
  if (colon != std::string::npos)
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  const auto address = parse_host(host, port);
  WEFT_REQUIRE(address && port > 0 && port < 65536,
               "'" + text + "' is not the address of a peer (host:port)");
  return *address;
}

std::string host_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  return text;
}

// Bytes of an address: 4 or 16.
std::span<const std::uint8_t> bits_of(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    return {reinterpret_cast<const std::uint8_t*>(
                &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr),
            4};
  }
  return {reinterpret_cast<const std::uint8_t*>(
              &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr),
          16};
}

struct Network {
  Address address;
  std::size_t length;  // length of the prefix, in bits

  bool holds(std::span<const std::uint8_t> other) const {
    const auto mine = bits_of(address);
    if (other.size() != mine.size()) return false;
    for (std::size_t bit = 0; bit < length; ++bit) {
      if (((mine[bit / 8] ^ other[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
  }
};

// "10.0.0.0/8", "fd00::/8".
std::optional<Network> parse_network(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const auto address = parse_host(text.substr(0, slash), 0);
  const auto length = parse_number<std::size_t>(text.substr(slash + 1));
  if (!address || !length || *length > 8 * bits_of(*address).size()) return std::nullopt;
  return Network{*address, *length};
}

// Interfaces and their addresses, IPv4 first. Omits link-local IPv6 addresses, since they do not
// identify the link.
std::vector<std::pair<std::string, Address>> own_addresses() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0)
    throw Error(Errc::kUnavailable, "cannot list the network interfaces: " + errno_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  std::vector<std::pair<std::string, Address>> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = raw; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      Address address;
      address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&address.storage, at->ifa_addr, address.length);
      const bool link_local =
          family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_addr);
      if (!link_local) found.emplace_back(at->ifa_name, address);
    }
  }
  return found;
}

std::string address_text(const Address& address) {
  return host_text(reinterpret_cast<const sockaddr*>(&address.storage));
}

// "lo 127.0.0.1, eth0 10.0.0.5".
std::string own_addresses_text() {
  std::string text;
  for (const auto& [interface, address] : own_addresses())
    text += (text.empty() ? "" : ", ") + interface + " " + address_text(address);
  return text;
}

// `error`: errno of socket(), bind() or listen(). A retry helps if the port is in use, and not if
// the address is wrong.
[[noreturn]] void cannot_listen(const std::string& host, int port, int error) {
  const std::string what = "cannot listen on " + join_address(host, port) + ": ";
  switch (error) {
    case EADDRNOTAVAIL:
      throw Error(Errc::kInvalidArgument,
                  what + "it is not an address of this host, which has " + own_addresses_text());
    case EACCES:
    case EPERM:
      throw Error(Errc::kInvalidArgument,
                  what + errno_text(error) + "; a port below 1024 needs root, so choose another");
    case EADDRINUSE:
      throw Error(Errc::kUnavailable,
                  what + errno_text(error) + "; choose another port, or 0 for any free port");
    default: throw Error(Errc::kUnavailable, what + errno_text(error));
  }
}

void set_option(const Fd& fd, int level, int option, int value) {
  ::setsockopt(fd.get(), level, option, &value, sizeof(value));
}

// A connection that begins with bbr keeps bbr's timers between packets, even if its control is
// changed later.
void begin_without_bbr(const Fd& fd) {
  constexpr std::string_view kReno = "reno";
  if (congestion_of(fd) == "bbr")
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, kReno.data(),
                 static_cast<socklen_t>(kReno.size()));
}

std::string system_congestion() {
  const Fd fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return congestion_of(fresh);
}

}  // namespace

std::string errno_text(int error) { return std::generic_category().message(error); }

std::string resolve_interface(const std::string& where) {
  if (parse_host(where, 0)) return where;
  const auto network = parse_network(where);
  WEFT_REQUIRE(network || where.find('/') == std::string::npos,
               "'" + where + "' is not a network (address/bits)");
  for (const auto& [interface, address] : own_addresses()) {
    if (network ? network->holds(bits_of(address)) : where == interface)
      return address_text(address);
  }
  throw Error(Errc::kInvalidArgument,
              "'" + where +
                  "' is not an address, a network or an interface of this host, which has " +
                  own_addresses_text());
}

bool is_wildcard(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return v4.s_addr == INADDR_ANY;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

Fd listen_on(const std::string& host, int port) {
  const auto address = parse_host(host, port);
  WEFT_REQUIRE(address, "'" + host + "' is not an address to listen on");
  Fd fd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) begin_without_bbr(fd);
  if (!fd ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->length) !=
          0 ||
      ::listen(fd.get(), 1024) != 0)
    cannot_listen(host, port, errno);
  return fd;
}

std::string join_address(const std::string& host, int port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port);
}

int bound_port(const Fd& listener) {
  Address address;
  address.length = sizeof(address.storage);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  if (address.storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

Fd accept_on(const Fd& listener, std::string& from, int& error) {
  Address address;
  address.length = sizeof(address.storage);
  auto* raw = reinterpret_cast<sockaddr*>(&address.storage);
  Fd fd(::accept4(listener.get(), raw, &address.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  error = fd ? 0 : errno;
  if (fd) from = host_text(raw);
  return fd;
}

void fail_without_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  throw Error(Errc::kUnavailable,
              "this process has the most open files that it may have, " +
                  std::to_string(limit.rlim_cur) + "; raise the limit (ulimit -n)",
              {kNoDescriptors});
}

Fd begin_connect(const std::string& text) {
  const Address address = parse_address(text);
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd && (errno == EMFILE || errno == ENFILE)) fail_without_descriptors();
  if (fd) begin_without_bbr(fd);
  if (!fd || (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                        address.length) != 0 &&
              errno != EINPROGRESS)) {
    throw Error(Errc::kUnavailable, "cannot connect to " + text + ": " + errno_text(errno));
  }
  return fd;
}

void set_options(const Fd& fd, std::chrono::milliseconds silence) {
  const int seconds = std::max(1, static_cast<int>(silence.count() / 4000));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
}

std::string congestion_of(const Fd& fd) {
  char name[16] = {};
  socklen_t length = sizeof(name) - 1;
  ::getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length);
  return name;
}

void set_congestion(const Fd& fd, const std::string& name) {
  if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                   static_cast<socklen_t>(name.size())) == 0)
    return;
  const std::string why = errno_text(errno);
  throw Error(Errc::kBadConfig,
              "congestion control '" + name + "' cannot be used: " + why +
                  "; see /proc/sys/net/ipv4/tcp_allowed_congestion_control for the allowed ones");
}

void fit_to_distance(const Fd& fd) {
  constexpr std::uint32_t kNearUs = 1000;
  constexpr std::uint64_t kBytesPerUs = 12'500;  // 100 Gbit/s
  constexpr std::uint64_t kLeast = 256 << 10, kMost = 4 << 20;
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  if (info.tcpi_rtt >= kNearUs) {
    const std::string control = system_congestion();
    if (congestion_of(fd) != control) set_congestion(fd, control);
    return;
  }
  const std::uint64_t under_way = std::max(kLeast, info.tcpi_rtt * kBytesPerUs);
  if (under_way < kMost) set_option(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(under_way));
}

}  // namespace weft::net::internal
