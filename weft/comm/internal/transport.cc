// make_engine() is a sequence of exchanges among all ranks. So all ranks must take the same
// branches, or one would wait in an exchange that the others do not make. Each branch depends only
// on answers that all ranks have got, and on options that are equal on all ranks:
//
//   where_they_are()           the host of each rank: one map of hosts on all ranks
//   over_host()                the ranks of each host share memory; then all ranks exchange whether
//                              theirs does: either all hosts use it, or none
//   over_tcp(), connect_mpi()  messages, unless shared memory connects all ranks
//   agree_on_tuning()          the schedules of messages
//
// A rank that throws in between makes no further exchange. It leaves a reason of its own in the
// store (make_backend()), where the ranks that wait for it find it (meeting.h).
#include "weft/comm/internal/transport.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/base/text/variables.h"
#include "weft/comm/internal/descriptors.h"
#include "weft/comm/internal/job_ranks.h"
#include "weft/comm/internal/over_mpi.h"
#include "weft/comm/internal/split.h"
#include "weft/net/inproc/inproc.h"
#include "weft/net/shm/shm.h"
#include "weft/net/tcp/tcp.h"
#include "weft/rank_link/notices.h"

namespace weft::comm::internal {
namespace {

// Location of each rank, by rank.
struct Places {
  std::vector<std::string> machines;  // equal if the ranks can share memory
  // equal if the ranks shall share memory: WEFT_HOST_ID divides a machine into hosts; with tcp and
  // mpi each rank is a host
  std::vector<std::string> hosts;
  bool one(const std::vector<std::string>& ids) const {
    return std::all_of(ids.begin(), ids.end(), [&](const auto& id) { return id == ids[0]; });
  }
};

// Checks that all ranks have the job's secret, or that none has, and that all use one transport.
Places where_they_are(const BackendOptions& options, const net::Exchange& exchange, int rank) {
  const std::string mine = options.secret.empty() ? "without a secret" : "with the job's secret";
  const bool apart = options.transport == Transport::kTcp || options.transport == Transport::kMpi;
  const std::string host = apart ? "rank " + std::to_string(rank) : variable("WEFT_HOST_ID");
  const std::string transport = to_string(options.transport);
  const auto all = exchange(mine + "/" + transport + "/" + net::host_id() + "/" + host);
  Places places;
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    const auto first = all[peer].find('/'), second = all[peer].find('/', first + 1),
               third = all[peer].find('/', second + 1);
    const std::string theirs = all[peer].substr(0, first),
                      its_transport = all[peer].substr(first + 1, second - first - 1);
    places.machines.push_back(all[peer].substr(second + 1, third - second - 1));
    places.hosts.push_back(all[peer].substr(second + 1));
    const auto different = [&](const std::string& what) {
      return Error(Errc::kBadConfig, what, {"init", rank, static_cast<int>(peer)});
    };
    const std::string it = "rank " + std::to_string(peer), me = "rank " + std::to_string(rank);
    if (theirs != mine)
      throw different(
          it + " joined " + theirs + " and " + me + " " + mine +
          "; start all ranks with the same launcher, and do not set WEFT_SECRET_FD by hand");
    if (its_transport != transport)
      throw different(it + " uses transport " + its_transport + " and " + me + " " + transport +
                      "; all ranks need the same comm.transport and WEFT_TRANSPORT");
  }
  return places;
}

std::array<std::byte, 32> agree_on_secret(const std::string& given, const net::Exchange& exchange,
                                          int rank) {
  std::array<std::byte, 32> secret{};
  // All ranks are here, or none: where_they_are() has compared it.
  if (given.empty()) {
    const std::string agreed = exchange(random_bytes(secret.size()))[0];
    if (agreed.size() != secret.size()) {
      throw Error(Errc::kCorrupt,
                  "rank 0 gave a secret of " + std::to_string(agreed.size()) +
                      " bytes instead of 32; check that all ranks run the same version of weft",
                  {"init", rank, 0});
    }
    std::memcpy(secret.data(), agreed.data(), secret.size());
  } else {
    WEFT_REQUIRE(given.size() == 32, "the job's secret must have 32 bytes");
    std::memcpy(secret.data(), given.data(), secret.size());
  }
  return secret;
}

std::unique_ptr<net::Endpoint> over_tcp(const BackendOptions& options, const Forming& forming,
                                        bool one_machine) {
  if (!one_machine && options.interface.empty() && options.store_host.empty()) {
    throw Error(Errc::kBadConfig,
                "transport tcp: the ranks met through MPI, which does not give the addresses of "
                "the hosts; set comm.interface, or set MASTER_ADDR to rank 0's host",
                {"init", forming.rank});
  }
  net::TcpOptions tcp;
  tcp.rank = forming.rank;
  tcp.world = forming.size;
  tcp.epoch = options.epoch;
  tcp.job = "weft";
  tcp.secret = agree_on_secret(options.secret, forming.exchange, forming.rank);
  const auto own_address = [&] {
    return one_machine ? std::string("127.0.0.1") : address_towards(options.store_host);
  };
  tcp.interface = options.interface.empty() ? own_address() : options.interface;
  tcp.connect_timeout = options.to_connect();
  if (one_machine && forming.size > static_cast<int>(std::thread::hardware_concurrency()))
    // A rank that spins would take the processor from the peer that it waits for.
    tcp.spin = std::chrono::microseconds(0);
  tcp.exchange = forming.exchange;
  tcp.lost_peer = forming.lost_peer;
  tcp.found_lost = [jobs = options.job_ranks, since = rank_link::notices().losses()] {
    return ranks_in_group(rank_link::notices().lost_since(since), jobs);
  };
  tcp.on_refused = [](const std::string& line) { log_warn(line); };
  auto endpoint = net::connect_tcp(tcp);
  const bool is_first = (options.epoch & 0xffff) == 0;  // later ones use what was reserved
  if (is_first && variable("WEFT_ELASTIC") == "1") reserve_descriptors_for_recovery();
  return endpoint;
}

// Connects the ranks of this host. If the ranks of any host cannot be connected, returns null on
// every rank of the group and logs it once.
std::unique_ptr<net::Host> over_host(const HostMap& map, const BackendOptions& options,
                                     const Forming& forming) {
  const auto& members = map.members();
  const auto lost_here = [&]() -> std::optional<int> {
    const auto lost = forming.lost_peer();
    const auto found = std::find(members.begin(), members.end(), lost.value_or(-1));
    return found == members.end() ? std::nullopt
                                  : std::optional(static_cast<int>(found - members.begin()));
  };
  std::unique_ptr<net::Host> host;
  std::string failed = "";
  try {
    host = net::Host::connect(
        {.rank = map.local,
         .world = map.local_world(),
         .exchange = forming.among(members, "host" + std::to_string(map.host) + "/"),
         .timeout = options.to_connect(),
         .lost_peer = lost_here});
  } catch (const Error& error) {
    if (error.code() != Errc::kUnavailable) throw;
    failed = error.message();
  }
  // All ranks of all hosts, since the engines of two hosts must be of the same kind.
  const auto all = forming.exchange(failed);
  const auto bad =
      std::find_if(all.begin(), all.end(), [](const auto& why) { return !why.empty(); });
  if (bad == all.end()) {
    host->name_ranks(net::RankNames(ranks_in_job(members, options.job_ranks)));
    return host;
  }
  if (options.transport == Transport::kShm)
    throw Error(Errc::kUnavailable, "transport shm: " + *bad, {"init", map.rank});
  if (map.rank == 0)
    log_warn("shared memory is not available (" + *bad +
             "): the ranks of a host use messages instead, which is slower");
  return nullptr;
}

}  // namespace

std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  // connect() of a datagram socket sends nothing. The kernel chooses the route, and with it the own
  // address.
  hints.ai_socktype = SOCK_DGRAM;
  std::string address, why;
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0)
    why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
  for (const addrinfo* at = found; at != nullptr && address.empty(); at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST];
    if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    } else {
      why = std::strerror(errno);
    }
    if (fd >= 0) close(fd);
  }
  if (found != nullptr) freeaddrinfo(found);
  if (!address.empty()) return address;
  throw Error(Errc::kUnavailable,
              "cannot find this host's address on the route to '" + host +
                  "', the store's host: " + why + "; set comm.interface or WEFT_INTERFACE",
              {"init", -1, -1});
}

std::unique_ptr<net::Endpoint> make_rings(net::Host& host, std::uint32_t epoch,
                                          std::chrono::nanoseconds timeout,
                                          std::function<void(const char* operation)> check) {
  const int size = host.world();
  const std::size_t bytes = net::shm_region_bytes(size);
  std::byte* const region = host.share(bytes, timeout);
  auto rings = net::make_shm({.rank = host.rank(),
                              .world = size,
                              .epoch = epoch,
                              .region = {region, bytes},
                              .lost_peer = [&host] { return host.lost_peer(); },
                              .check = std::move(check)});
  rings->name_ranks(host.rank_names());
  return rings;
}

std::unique_ptr<Engine> make_engine(const Forming& forming, const BackendOptions& options) {
  if (forming.size == 1)
    return make_direct_engine(std::move(net::make_thread_hosts(1)[0]),
                              std::move(net::make_inproc(1)[0]), options.timeout);
  const Places places = where_they_are(options, forming.exchange, forming.rank);
  const HostMap map = HostMap::of(places.hosts, forming.rank);
  if (options.transport == Transport::kShm && map.num_hosts() > 1)
    throw Error(Errc::kUnavailable,
                "transport shm: the ranks are on different hosts; use auto or tcp");
  std::unique_ptr<net::Host> host;
  if (map.num_hosts() == 1 || map.two_levels()) host = over_host(map, options, forming);
  if (host && map.num_hosts() == 1) {
    auto rings = make_rings(*host, options.epoch, options.to_connect(),
                            [&at = *host](const char* operation) { at.check(operation); });
    return make_direct_engine(std::move(host), std::move(rings), options.timeout);
  }
  const bool one_machine = places.one(places.machines);
  std::unique_ptr<net::Endpoint> endpoint;
  if (options.transport == Transport::kMpi ||
      (options.transport == Transport::kAuto && forming.over_mpi)) {
    auto over_mpi = connect_mpi(forming, options);
    if (!host) return make_mpi_engine(std::move(over_mpi), options.ordered_sums);
    endpoint = std::move(over_mpi);
  } else {
    endpoint = over_tcp(options, forming, one_machine);
  }
  endpoint->name_ranks(net::RankNames(options.job_ranks));
  const Tuning tuning = agree_on_tuning(options, one_machine, forming.exchange, forming.rank);
  if (!host) return make_message_engine(std::move(endpoint), tuning);
  return make_split_engine(std::move(host), std::move(endpoint), map,
                           {options.timeout, tuning, options.job_ranks});
}

}  // namespace weft::comm::internal
