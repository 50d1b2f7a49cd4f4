#include "weft/comm/internal/over_mpi.h"

#include <algorithm>

#include "weft/comm/internal/view_endpoint.h"

namespace weft::comm::internal {
namespace {

constexpr net::Channel kOrdered = net::Channel{1} << 40;

class MpiEngine final : public Engine {
 public:
  MpiEngine(std::unique_ptr<net::mpi::MpiEndpoint> endpoint, bool ordered_sums)
      : endpoint_(std::move(endpoint)) {
    if (!ordered_sums || endpoint_->world() <= 2) return;
    ordered_ = make_message_engine(make_view(endpoint_, all_ranks(endpoint_->world()), kOrdered),
                                   {.ordered_sums = true});
  }
  net::Endpoint& endpoint() override { return *endpoint_; }
  net::Host* host() override { return nullptr; }
  Traffic traffic() override {
    return {.sent_bytes = endpoint_->sent_bytes(), .is_complete = false};
  }
  void fail(const Error& why) noexcept override { endpoint_->abort(why); }
  void stop(const Error& why) noexcept override { endpoint_->fail(why); }
  std::string describe() const override {
    return std::string("mpi (") + endpoint_->implementation() + ")";
  }

  bool has_ordered_sums() const override { return ordered_ != nullptr || endpoint_->world() <= 2; }

 private:
  void perform(schedule::Collective collective, const net::DirectArgs& args) override {
    if (ordered_ && is_ordered(collective)) return ordered_->run(collective, args);
    endpoint_->run(collective, args);
  }

  const std::shared_ptr<net::mpi::MpiEndpoint> endpoint_;
  std::unique_ptr<Engine> ordered_;
};

net::Exchange exchange_over(std::shared_ptr<net::mpi::MpiEndpoint> endpoint,
                            std::chrono::milliseconds timeout) {
  return [endpoint = std::move(endpoint), timeout](const std::string& mine) {
    return net::mpi::exchange(*endpoint, mine, Deadline::in(timeout));
  };
}

std::shared_ptr<net::mpi::MpiEndpoint> connect(const std::vector<int>& ranks,
                                               const BackendOptions& options) {
  return net::mpi::connect_mpi(
      {.ranks = ranks, .epoch = options.epoch, .timeout = options.timeout});
}

Forming meet_through(std::shared_ptr<net::mpi::MpiEndpoint> all, const std::vector<int>& ranks,
                     const BackendOptions& options) {
  Forming forming{all->rank(), all->world(), exchange_over(all, options.to_connect()),
                  {},          {},           true};
  forming.among = [ranks, options](const std::vector<int>& members, const std::string&) {
    std::vector<int> theirs;
    for (const int member : members) theirs.push_back(ranks[static_cast<std::size_t>(member)]);
    return exchange_over(connect(theirs, options), options.to_connect());
  };
  forming.lost_peer = []() -> std::optional<int> {
    return std::nullopt;
  };  // the launcher ends the whole job if a rank ends early
  return forming;
}

}  // namespace

Forming meet_over_mpi(const std::vector<int>& ranks, int me, const BackendOptions& options) {
  auto part = connect(ranks, options);
  if (part->rank() != me)
    throw Error(Errc::kInternal, "MPI's rank numbers differ from weft's in this group",
                {"init", me});
  return meet_through(std::move(part), ranks, options);
}

Forming meet_over_mpi(const Identity& me, const BackendOptions& options) {
  auto all = connect({}, options);
  // If a launcher of another MPI started the processes, this MPI's library treats each process as a
  // world of its own.
  if (all->rank() != me.rank || all->world() != me.world) {
    throw Error(Errc::kBadConfig,
                me.source + " says rank " + std::to_string(me.rank) + " of " +
                    std::to_string(me.world) + ", the library of " + all->implementation() +
                    " says rank " + std::to_string(all->rank()) + " of " +
                    std::to_string(all->world()) +
                    "; use the mpirun of the MPI that weft's plug-in was built for, or set "
                    "MASTER_ADDR to run without MPI",
                {"init", me.rank});
  }
  return meet_through(std::move(all), all_ranks(me.world), options);
}

std::unique_ptr<net::mpi::MpiEndpoint> connect_mpi(const Forming& forming,
                                                   const BackendOptions& options) {
  std::string mine;
  try {
    mine = std::to_string(net::mpi::world_rank());
  } catch (const Error& error) {
    if (error.code() != Errc::kUnavailable) throw;
    mine = error.message();
  }
  const auto all = forming.exchange(mine);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const bool is_number =
        !all[rank].empty() && std::all_of(all[rank].begin(), all[rank].end(),
                                          [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) {
      throw Error(Errc::kUnavailable, "rank " + std::to_string(rank) + ": " + all[rank],
                  {"init", forming.rank, static_cast<int>(rank)});
    }
    ranks.push_back(std::stoi(all[rank]));
  }
  return net::mpi::connect_mpi(
      {.ranks = ranks, .epoch = options.epoch, .timeout = options.timeout});
}

std::unique_ptr<Engine> make_mpi_engine(std::unique_ptr<net::mpi::MpiEndpoint> endpoint,
                                        bool ordered_sums) {
  return std::make_unique<MpiEngine>(std::move(endpoint), ordered_sums);
}

}  // namespace weft::comm::internal
