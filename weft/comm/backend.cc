#include "weft/comm/backend.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/log.h"
#include "weft/comm/internal/meeting.h"
#include "weft/comm/internal/weft_backend.h"
#include "weft/net/inproc.h"
#include "weft/net/shm.h"
#include "weft/net/tcp.h"

namespace weft::comm {
namespace {

using internal::WeftBackend;

// The own address on the way to `host`, as peers elsewhere can use it.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  std::string address = "127.0.0.1";
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0 || found == nullptr) return address;
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char text[NI_MAXHOST];
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
    address = text;
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return address;
}

// Every rank's host, by rank; ranks that are to speak TCP are on no host in common. All of them have the job's secret, or none.
std::vector<std::string> where_they_are(const BackendOptions& options, const net::Exchange& exchange, int rank) {
  const std::string mine = options.secret.empty() ? "without a secret" : "with the job's secret";
  auto hosts = exchange(mine + "/" + net::host_id() + (options.transport == "tcp" ? "/tcp" : ""));
  for (std::size_t peer = 0; peer < hosts.size(); ++peer) {
    const std::string theirs = hosts[peer].substr(0, hosts[peer].find('/'));
    if (theirs == mine) continue;
    throw Error(Errc::kBadConfig,
                "rank " + std::to_string(peer) + " came " + theirs + " and rank " + std::to_string(rank) + " " + mine +
                    "; start all ranks by the same launcher and do not set WEFT_SECRET_FD by hand",
                {"init", rank, static_cast<int>(peer)});
  }
  return hosts;
}

std::array<std::byte, 32> agree_on_secret(const std::string& given, const net::Exchange& exchange, int rank) {
  std::array<std::byte, 32> secret{};
  if (given.empty()) {
    std::string made(32, '\0');
    if (rank == 0 && getrandom(made.data(), made.size(), 0) != 32) throw Error(Errc::kUnavailable, "no random numbers for a secret");
    const std::string agreed = exchange(made)[0];
    std::memcpy(secret.data(), agreed.data(), secret.size());
  } else {
    WEFT_REQUIRE(given.size() == 32, "the job's secret must have 32 bytes");
    std::memcpy(secret.data(), given.data(), secret.size());
  }
  return secret;
}

// What is known while the group forms.
struct Forming {
  int rank, size;
  net::Exchange exchange;
  std::function<std::optional<int>()> lost_peer;
};

std::unique_ptr<internal::Engine> over_tcp(const BackendOptions& options, const Forming& forming, bool one_host) {
  net::TcpOptions tcp;
  tcp.rank = forming.rank;
  tcp.world = forming.size;
  tcp.epoch = options.epoch;
  tcp.job = "weft";
  tcp.secret = agree_on_secret(options.secret, forming.exchange, forming.rank);
  tcp.interface = !options.interface.empty() ? options.interface : one_host ? "127.0.0.1" : address_towards(options.store_host);
  tcp.connect_timeout = options.timeout;
  if (one_host && forming.size > static_cast<int>(std::thread::hardware_concurrency())) tcp.spin = std::chrono::microseconds(0);
  tcp.exchange = forming.exchange;
  tcp.lost_peer = forming.lost_peer;
  tcp.on_refused = [](const std::string& line) { log_warn(line); };
  return internal::make_message_engine(net::connect_tcp(tcp));
}

// Rings for messages between each two ranks: at most 32 MiB for all of them together.
constexpr std::size_t kRingTotal = 32 << 20;

std::unique_ptr<internal::Engine> over_host(std::unique_ptr<net::Host> host, const BackendOptions& options) {
  const int size = host->world();
  const std::size_t ring = std::clamp<std::size_t>(std::bit_floor(kRingTotal / static_cast<std::size_t>(size * size)), 8 << 10, 256 << 10);
  const std::size_t bytes = net::shm_region_bytes(size, ring);
  std::byte* region = host->share(bytes, options.timeout);
  net::Host* peers = host.get();
  auto endpoint = net::make_shm({.rank = host->rank(),
                                 .world = size,
                                 .epoch = options.epoch,
                                 .region = {region, bytes},
                                 .lost_peer = [peers] { return peers->lost_peer(); },
                                 .ring_bytes = ring});
  return internal::make_direct_engine(std::move(host), std::move(endpoint), options.timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const BackendOptions& options) {
  const bool known = options.transport == "auto" || options.transport == "shm" || options.transport == "tcp";
  if (!known) throw Error(Errc::kBadConfig, "unknown transport '" + options.transport + "'; there are auto, shm and tcp");
  std::unique_ptr<internal::Engine> engine;
  if (size == 1) {
    engine = internal::make_direct_engine(std::move(net::make_thread_hosts(1)[0]), std::move(net::make_inproc(1)[0]), options.timeout);
  } else {
    const auto exchange = internal::exchange_over(store, rank, size, options.timeout);
    const Forming forming{rank, size, exchange, [store] { return internal::lost_rank(*store); }};
    const auto hosts = where_they_are(options, exchange, rank);
    const bool one_host = std::all_of(hosts.begin(), hosts.end(), [&](const auto& id) { return id == hosts[0]; });
    if (options.transport == "shm" && !one_host)
      throw Error(Errc::kUnavailable, "transport shm: the ranks are on different hosts; use auto or tcp");
    if (one_host && options.transport != "tcp") {
      try {
        engine =
            over_host(net::Host::connect(
                          {.rank = rank, .world = size, .exchange = exchange, .timeout = options.timeout, .lost_peer = forming.lost_peer}),
                      options);
      } catch (const Error& error) {
        if (error.code() != Errc::kUnavailable || options.transport == "shm") throw;
        if (rank == 0)
          log_warn("shared memory cannot be used (" + error.message() + "): ranks of this host talk over TCP instead, which is slower");
      }
    }
    if (!engine) engine = over_tcp(options, forming, one_host);
  }
  return c10::make_intrusive<WeftBackend>(std::move(engine), rank, size, options.timeout);
}

c10::intrusive_ptr<c10d::Backend> make_backend(std::unique_ptr<net::Host> host, std::unique_ptr<net::Endpoint> endpoint,
                                               std::chrono::milliseconds timeout) {
  const int rank = host->rank(), size = host->world();
  return c10::make_intrusive<WeftBackend>(internal::make_direct_engine(std::move(host), std::move(endpoint), timeout), rank, size, timeout);
}

net::Host* host_of(c10d::Backend& backend) {
  auto* weft = dynamic_cast<WeftBackend*>(&backend);
  return weft != nullptr ? weft->host() : nullptr;
}

}  // namespace weft::comm
