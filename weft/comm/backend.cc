#include "weft/comm/backend.h"

#include <array>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/comm/internal/cuda/nccl.h"
#include "weft/comm/internal/reconfigurable.h"
#include "weft/comm/internal/transport.h"
#include "weft/comm/internal/weft_backend.h"

namespace weft::comm {

using internal::WeftBackend;

namespace {

constexpr std::array kTransports = {"auto", "shm", "tcp", "mpi", "nccl"};

// Returns the rank that is known to have ended. Empty: the launcher's entry in the store tells it.
// Throws if the group cannot be formed for another reason.
using Lost = std::function<std::optional<int>()>;

c10::intrusive_ptr<c10d::Backend> over_store(
    const WeftBackend::Part& here, const BackendOptions& options, const Lost& lost,
    const std::shared_ptr<internal::RelatedGroups>& related) {
  const int size = static_cast<int>(here.ranks.size());
  const bool nccl = options.transport == Transport::kNccl;
  // All ranks of a group that has formed again are known to run.
  const auto names =
      options.lost_rank ? std::optional(net::RankNames(options.job_ranks)) : std::nullopt;
  const auto forming = internal::meet_at(here.store, {.rank = here.me,
                                                      .size = size,
                                                      .timeout = options.to_connect(),
                                                      .lost = lost,
                                                      .names = names});
  const auto make = [options, related, known = forming.lost_peer](const WeftBackend::Part& part) {
    BackendOptions as = options;
    as.timeout = part.timeout;
    as.connect_timeout = {};  // of this group alone
    if (part.is_new) {
      as.job_ranks.clear();
      as.lost_rank = nullptr;
      as.epoch = 0;
      return over_store(part, as, nullptr, std::make_shared<internal::RelatedGroups>());
    }
    as.job_ranks = internal::ranks_in_job(part.ranks, options.job_ranks);
    const auto lost_of_part = [known, related, ranks = part.ranks] {
      if (const auto loss = related->loss()) throw *loss;
      return internal::place_among(ranks, known());
    };
    return over_store(part, as, lost_of_part, related);
  };
  try {
    if (nccl && options.ordered_sums)
      throw Error(Errc::kBadConfig,
                  "transport nccl does not support ordered sums; use transport auto",
                  {"init", here.me});
    if (nccl) internal::require_nccl(here.me);
    auto backend = c10::make_intrusive<WeftBackend>(
        internal::make_engine(forming, options), here.me, size, options.timeout,
        WeftBackend::Origin{here.store, make, related, options.job_ranks, here.store != nullptr});
    if (nccl && here.store) {
      const auto store = c10::make_intrusive<c10d::PrefixStore>("nccl", here.store);
      backend->use_for_devices(internal::make_nccl(store, here.me, size, options));
    }
    return backend;
  } catch (const std::exception& error) {
    // A rank that comes after this one has given up must not wait for it.
    const auto* const known = dynamic_cast<const Error*>(&error);
    const bool gave_up = known != nullptr && known->code() == Errc::kTimeout && !options.lost_rank;
    if (here.store && (gave_up || internal::is_own(error)))
      internal::tell_failure(*here.store, here.me, error);
    throw;
  }
}

}  // namespace

const char* to_string(Transport transport) {
  return kTransports.at(static_cast<std::size_t>(transport));
}

Transport parse_transport(const std::string& name) {
  for (std::size_t i = 0; i < kTransports.size(); ++i) {
    if (name == kTransports[i]) return static_cast<Transport>(i);
  }
  throw Error(Errc::kBadConfig,
              "unknown transport '" + name + "'; the transports are auto, shm, tcp, mpi and nccl");
}

c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, const BackendOptions& options) {
  BackendOptions bounded = options;
  bounded.timeout = bounded_timeout(options.timeout);
  bounded.connect_timeout = bounded_timeout(options.connect_timeout);
  return over_store({std::move(store), internal::all_ranks(size), rank, bounded.timeout}, bounded,
                    options.lost_rank, std::make_shared<internal::RelatedGroups>());
}

c10::intrusive_ptr<c10d::Backend> make_backend(std::unique_ptr<net::Host> host,
                                               std::unique_ptr<net::Endpoint> endpoint,
                                               std::chrono::milliseconds timeout) {
  const int rank = host->rank(), size = host->world();
  timeout = bounded_timeout(timeout);
  return c10::make_intrusive<WeftBackend>(
      internal::make_direct_engine(std::move(host), std::move(endpoint), timeout), rank, size,
      timeout);
}

c10::intrusive_ptr<c10d::Backend> make_reconfigurable_backend(c10::intrusive_ptr<c10d::Store> store,
                                                              int rank, int size,
                                                              const BackendOptions& options) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  return c10::make_intrusive<internal::ReconfigurableBackend>(std::move(store), rank, size,
                                                              options);
#else
  static_cast<void>(store);
  static_cast<void>(size);
  static_cast<void>(options);
  throw Error(Errc::kUnavailable,
              "this libtorch has no interface to reconfigure groups; use torch 2.14 or newer",
              {"init", rank});
#endif
}

net::Host* host_of(c10d::Backend& backend) {
  auto* const weft = internal::weft_backend(backend);
  return weft != nullptr ? weft->host() : nullptr;
}

std::vector<int> job_ranks_of(c10d::Backend& backend) {
  const auto* const weft = dynamic_cast<const WeftBackend*>(&backend);
  return weft != nullptr ? weft->job_ranks() : std::vector<int>();
}

}  // namespace weft::comm
