#include "weft/comm/init.h"

#include <ATen/Parallel.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/base/process/start.h"
#include "weft/base/text/variables.h"
#include "weft/comm/allocator.h"
#include "weft/comm/backend.h"
#include "weft/comm/internal/job_store.h"
#include "weft/comm/internal/local_rank.h"
#include "weft/comm/internal/over_mpi.h"
#include "weft/comm/internal/regroup_data.h"
#include "weft/comm/internal/rendezvous.h"
#include "weft/comm/internal/store_silence.h"
#include "weft/comm/internal/transport.h"
#include "weft/comm/internal/weft_backend.h"
#include "weft/observe/position/position.h"
#include "weft/rank_link/messages.h"
#include "weft/rank_link/spare.h"
#include "weft/store/client.h"

namespace weft::comm {
namespace {

// The host of the store is taken for lost when it has been silent for so long in a call.
constexpr auto kStoreSilence = std::chrono::seconds(60);
// A rank that cannot join waits so long for the store where it tells the others.
constexpr auto kTellTimeout = std::chrono::seconds(5);

// The launcher passes the secret as an open descriptor, never in the environment or on the command
// line. pread() reads it, so that several groups of one process can read it.
std::string job_secret() {
  if (!is_variable_set("WEFT_SECRET_FD")) return "";
  std::string secret(32, '\0');
  const int fd = number_variable("WEFT_SECRET_FD").value_or(-1);
  if (pread(fd, secret.data(), secret.size(), 0) != 32) {
    throw Error(Errc::kBadConfig,
                "WEFT_SECRET_FD is not an open file of 32 bytes; only the launcher may set it, so "
                "unset it");
  }
  return secret;
}

// A restarted job uses its own keys in the store, so that it does not read entries of an earlier
// attempt.
std::string store_prefix(const std::string& run_id, int restart_count) {
  return "weft/" + run_id + "/" + std::to_string(restart_count);
}

// torchrun counts the restarts of each node separately. So one attempt may have different restart
// counts, and two attempts may have equal ones. weft's launcher has one count for all ranks.
bool counts_by_node(const Identity& identity) {
  return is_variable_set("TORCHELASTIC_RUN_ID") && !is_variable_set("WEFT_LAUNCHER_PID") &&
         !identity.mpi;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

[[noreturn]] void fail_to_host(const Identity& identity, const std::string& why,
                               Errc code = Errc::kUnavailable) {
  throw Error(code,
              "rank 0 cannot host the store at " + identity.master_addr + ":" +
                  std::to_string(identity.master_port) +
                  " (port in use, or address of another host); set MASTER_PORT to a free port and "
                  "MASTER_ADDR to an address of rank 0's host: " +
                  why,
              {"init", identity.rank});
}

// Opens a listening socket for the store on the address of MASTER_ADDR. By default the store
// listens on every interface and accepts anybody. Returns -1 for the default if other hosts must
// reach a name that is loopback on this host (Debian's 127.0.1.1).
int listen_for_store(const Identity& identity) {
  addrinfo hints{}, *raw = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int failed = ::getaddrinfo(identity.master_addr.c_str(),
                                   std::to_string(identity.master_port).c_str(), &hints, &raw);
  if (failed != 0) fail_to_host(identity, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  if (is_loopback(*found->ai_addr) && identity.world > identity.local_world) {
    log_warn(
        "MASTER_ADDR " + identity.master_addr +
        " is loopback on this host, but other hosts must reach it: the store listens on every " +
        "interface; set MASTER_ADDR to an address of this host");
    return -1;
  }
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int reason = errno;
  ::close(fd);
  fail_to_host(identity, std::strerror(reason),
               reason == EADDRNOTAVAIL ? Errc::kBadConfig : Errc::kUnavailable);
}

// The stores that this process hosts, by address and port. A further group uses the same one while
// an earlier group is alive, since the port is in use.
struct HostedStores {
  std::mutex mutex;  // guards `all`; also held while a store is made
  std::map<std::pair<std::string, int>, c10::weak_intrusive_ptr<c10d::TCPStore>> all;

  static HostedStores& get() {
    static HostedStores& one = *new HostedStores;  // groups may outlive static variables
    return one;
  }
};

c10::intrusive_ptr<c10d::TCPStore> hosted_store(const Identity& identity,
                                                c10d::TCPStoreOptions options) {
  HostedStores& stores = HostedStores::get();
  const std::lock_guard lock(stores.mutex);
  const std::pair<std::string, int> place(identity.master_addr, identity.master_port);
  const auto known = stores.all.find(place);
  if (known != stores.all.end()) {
    if (auto alive = known->second.lock()) return alive;
    stores.all.erase(known);
  }
  options.isServer = true;
  const int listener = listen_for_store(identity);
  if (listener >= 0) options.masterListenFd = listener;  // now owned by the store
  auto store = c10::make_intrusive<c10d::TCPStore>(identity.master_addr, options);
  stores.all.emplace(place, store);
  return store;
}

// The replicated store of the job, if its launcher runs one, else PyTorch's store.
c10::intrusive_ptr<c10d::Store> store_of(const Identity& identity, bool hosts_it,
                                         std::chrono::milliseconds timeout) {
  if (const auto socket = store::Client::environment()) {
    return c10::make_intrusive<internal::JobStore>(std::make_shared<store::Client>(*socket),
                                                   timeout);
  }
  c10d::TCPStoreOptions options;
  options.port = identity.master_port;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = hosts_it ? hosted_store(identity, options)
                          : c10::make_intrusive<c10d::TCPStore>(identity.master_addr, options);
    internal::limit_silence_of_store(identity.master_port, kStoreSilence);
    return store;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    if (hosts_it) fail_to_host(identity, what.substr(0, what.find('\n')));
    const std::string place = identity.master_addr + ":" + std::to_string(identity.master_port);
    throw Error(
        Errc::kTimeout,
        "no store answers at " + place + " within " + std::to_string(timeout.count()) +
            " ms; check that rank 0 is running and that MASTER_ADDR and MASTER_PORT are right",
        {"init", identity.rank, 0});
  }
}

// Returns nothing if the ranks use a store.
std::optional<internal::Forming> through_mpi(const Identity& identity,
                                             const BackendOptions& backend) {
  const bool asked = identity.mpi && backend.transport == Transport::kMpi;
  if (!asked && !identity.meets_through_mpi) return std::nullopt;
  try {
    return internal::meet_over_mpi(identity, backend);
  } catch (const Error& error) {
    if (asked || error.code() != Errc::kUnavailable) throw;
    if (identity.master_addr.empty()) {
      throw Error(Errc::kBadConfig,
                  "the job spans several hosts, the address of rank 0 is unknown, and MPI cannot "
                  "be used: " +
                      error.message() +
                      "; or set MASTER_ADDR to rank 0's host (mpirun: -x MASTER_ADDR=HOST)",
                  {"init", identity.rank});
    }
    log_info(
        "the rendezvous uses a port that only one job on this host can have; set MASTER_PORT for "
        "another job",
        {{"port", identity.master_port}, {"reason", error.message()}});
    return std::nullopt;
  }
}

// `ranks`: numbers in the launcher's world, by rank of the group.
c10::intrusive_ptr<c10d::Backend> over_mpi(
    const internal::Forming& forming, const std::vector<int>& ranks, const BackendOptions& options,
    const std::shared_ptr<internal::RelatedGroups>& related) {
  const auto make = [ranks, options, related](const internal::WeftBackend::Part& part) {
    BackendOptions as = options;
    as.timeout = part.timeout;
    std::vector<int> theirs;
    for (const int rank : part.ranks) theirs.push_back(ranks[static_cast<std::size_t>(rank)]);
    as.job_ranks = theirs;
    return over_mpi(internal::meet_over_mpi(theirs, part.me, as), theirs, as, related);
  };
  return c10::make_intrusive<internal::WeftBackend>(
      internal::make_engine(forming, options), forming.rank, forming.size, options.timeout,
      internal::WeftBackend::Origin{nullptr, make, related, options.job_ranks});
}

// Returns nothing if the ranks use a store.
std::optional<Group> join_through_mpi(const Identity& identity, const BackendOptions& backend) {
  const auto forming = through_mpi(identity, backend);
  if (!forming) return std::nullopt;
  BackendOptions options = backend;
  options.store_host = "";
  internal::RegroupData regroup_data;
  regroup_data.through_mpi = true;
  return Group(over_mpi(*forming, internal::all_ranks(identity.world), options,
                        std::make_shared<internal::RelatedGroups>()),
               "world", std::make_shared<const internal::RegroupData>(std::move(regroup_data)));
}

}  // namespace

std::string interface_of(const Group& group) {
  const auto& regroup_data = group.regroup_data();
  if (!regroup_data) return "127.0.0.1";
  const BackendOptions& options = regroup_data->options;
  if (!options.interface.empty()) return options.interface;
  return options.store_host.empty() ? "127.0.0.1" : internal::address_towards(options.store_host);
}

std::string lost_rank_key(const std::string& run_id, int restart_count) {
  // With the separator of PrefixStore.
  return store_prefix(run_id, restart_count) + "/" + internal::kLostKey;
}

std::string gone_ranks_key(const std::string& run_id, int restart_count) {
  return store_prefix(run_id, restart_count) + "/" + internal::kGoneKey;
}

Group init(const InitOptions& options) {
  if (rank_link::is_spare()) {
    rank_link::become_rank();
    observe::attach_position();
  }
  return init(discover(Environment::process(), options.identity), options);
}

namespace {

// Number of groups that a rank of this process has begun to form at the place of the job: an
// address, a prefix of keys, and the rank. Each group has keys of its own in the store, since the
// keys of an earlier one are still there. A newcomer joins the first group instead of forming it.
int groups_begun(const Identity& identity, bool is_newcomer) {
  static std::mutex mutex;
  static std::map<std::string, int> begun;
  const std::string place = identity.master_addr + " " + std::to_string(identity.master_port) +
                            " " + store_prefix(identity.run_id, identity.restart_count) + " " +
                            std::to_string(identity.rank);
  const std::lock_guard lock(mutex);
  int& count = begun[place];
  if (!is_newcomer) return count++;
  count = std::max(count, 1);  // it may try to join several times
  return 0;
}

// As form_group(), for a process that has formed a group over `store` before, or has tried to. All
// ranks do so as often.
Group form_again(const c10::intrusive_ptr<c10d::Store>& store, int before, const Identity& identity,
                 BackendOptions options) {
  // The launcher and newcomers know the store alone.
  options.lost_rank = [store, world = identity.world] {
    return internal::unreplaced_rank(*store, world);
  };
  return internal::form_group_number(before, store, identity.rank, identity.world, options);
}

// True for a job of several nodes whose launchers do not know each other's losses (--master-addr).
bool has_fixed_nodes(const Identity& identity) {
  return identity.local_world < identity.world && !store::Client::environment();
}

// The rank that hosts the store of its first group.
bool hosts_store(const Identity& identity) {
  return identity.rank == 0 && !identity.store_is_hosted_elsewhere;
}

// The keys of this job in its store.
c10::intrusive_ptr<c10d::Store> keys_of_job(const Identity& identity,
                                            c10::intrusive_ptr<c10d::Store> store) {
  return c10::make_intrusive<c10d::PrefixStore>(
      store_prefix(identity.run_id, identity.restart_count), std::move(store));
}

// Of an error of this rank before it has reached the store. A rank 0 that hosts the store has none
// yet, so it can tell nobody.
void tell_others(const Identity& identity, int before, const std::exception& error) noexcept {
  if (identity.meets_through_mpi || hosts_store(identity)) return;
  try {
    const auto store = keys_of_job(identity, store_of(identity, /*hosts_it=*/false, kTellTimeout));
    internal::tell_failure(*internal::place_of_group(before, store), identity.rank, error);
  } catch (const std::exception&) {
    // No store answers: rank 0 waits until its timeout, once it has begun.
  }
}

// Without the secret, which a process alone does not have.
BackendOptions backend_options(const Identity& identity, const InitOptions& options) {
  BackendOptions backend;
  backend.transport = options.transport;
  if (const char* set = variable_or_null("WEFT_TRANSPORT");
      set != nullptr && backend.transport == Transport::kAuto)
    backend.transport = parse_transport(set);
  backend.interface = options.interface;
  if (backend.interface.empty()) backend.interface = variable("WEFT_INTERFACE");
  backend.ordered_sums = options.ordered_sums;
  backend.store_host = identity.master_addr;
  backend.timeout = options.timeout;
  backend.alike = options.alike;
  // Each restart of the job has its own range of epochs, so that earlier regroups do not matter.
  backend.epoch = static_cast<std::uint32_t>(identity.restart_count) << 16;
  return backend;
}

// The group of a job that may have several ranks.
Group meet(const Identity& launched, const InitOptions& options) {
  Identity identity = launched;
  c10::intrusive_ptr<c10d::Store> job_store;
  if (counts_by_node(identity) && !options.newcomer) {
    job_store = store_of(identity, hosts_store(identity), options.timeout);
    c10d::PrefixStore attempts("weft/" + identity.run_id, job_store);
    identity.restart_count =
        agree_on_attempt(attempts, identity.rank, identity.world, options.timeout);
  }
  // Before anything that may fail on one rank only.
  const int before = groups_begun(identity, options.newcomer);
  BackendOptions backend;
  try {
    backend = backend_options(identity, options);
    backend.secret = job_secret();
  } catch (const std::exception& error) {
    if (!options.newcomer) tell_others(identity, before, error);
    throw;
  }
  if (options.newcomer) {
    const auto store =
        keys_of_job(identity, store_of(identity, /*hosts_it=*/false, options.timeout));
    rank_link::tell_launcher(rank_link::Joining{});
    return join_group(store, backend, options.timeout, identity.rank,
                      has_fixed_nodes(identity) ? identity.world : 0);
  }
  if (auto joined = join_through_mpi(identity, backend)) return *joined;
  if (!job_store) job_store = store_of(identity, hosts_store(identity), options.timeout);
  const auto store = keys_of_job(identity, std::move(job_store));
  static bool has_met = false;  // a program may form further groups while it trains
  if (!std::exchange(has_met, true)) rank_link::tell_launcher(rank_link::Meeting{});
  failpoint("meet.begin");
  if (before > 0) return form_again(store, before, identity, backend);
  return form_group(store, identity.rank, identity.world, backend);
}

}  // namespace

Group init(const Identity& identity, const InitOptions& asked) {
  ignore_file_size_signal();
  InitOptions options = asked;
  options.timeout = bounded_timeout(asked.timeout);
  static bool has_joined = false;  // the replacement of a lost rank joins once
  const bool replaces = is_variable_set("WEFT_NEWCOMER") && !has_joined;
  options.newcomer = options.newcomer || replaces;
  set_rank(identity.rank, identity.world);
  internal::set_local_rank(identity.local_rank);
  observe::set_position_rank(identity.rank);
  const observe::ActivityScope activity(observe::Activity::kInit);
  if (options.shared_allocator) install_allocator();
  if (options.set_threads && !is_variable_set("OMP_NUM_THREADS")) {
    const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    at::set_num_threads(std::max(1, processors / std::max(1, identity.local_world)));
  }
  log_debug(identity.banner());
  // The launcher may add ranks to one rank.
  const bool may_grow = variable("WEFT_ELASTIC") == "1";
  if (identity.world == 1 && !options.newcomer && !may_grow)
    return Group(make_backend(nullptr, 0, 1, backend_options(identity, options)), "world");
  Group group = meet(identity, options);
  if (!options.newcomer) failpoint("meet.made");
  if (replaces || !options.newcomer) rank_link::tell_launcher(rank_link::Joined{});
  has_joined = has_joined || replaces;
  const auto* const weft = dynamic_cast<const internal::WeftBackend*>(&group.backend());
  if (identity.mpi && weft != nullptr)
    log_info("ranks of " + identity.source,
             {{"ranks", identity.world}, {"transport", weft->describe()}});
  return group;
}

}  // namespace weft::comm
