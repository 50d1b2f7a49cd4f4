#include "weft/comm/internal/engine.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

class DirectEngine final : public Engine {
 public:
  DirectEngine(std::unique_ptr<net::Host> host, std::unique_ptr<net::Endpoint> endpoint,
               std::chrono::nanoseconds timeout)
      : host_(std::move(host)), endpoint_(std::move(endpoint)), direct_(*host_, timeout) {}

  void run(Collective collective, const net::DirectArgs& args) override {
    run_direct(direct_, collective, args);
  }
  net::Endpoint& endpoint() override { return *endpoint_; }
  net::Host* host() override { return host_.get(); }
  std::string describe() const override { return "shared memory"; }
  Traffic traffic() override {
    return {endpoint_->sent_bytes(), direct_.moved_bytes() + host_->moved_bytes()};
  }
  void fail(const Error& why) noexcept override {
    host_->fail(why);
    endpoint_->fail(why);
  }

 private:
  std::unique_ptr<net::Host> host_;
  std::unique_ptr<net::Endpoint> endpoint_;
  net::Direct direct_;
};

Error given_up(const Error& why) {
  const bool lost = why.code() == Errc::kPeerLost;
  return Error(lost ? Errc::kPeerLost : Errc::kAborted, "the group has failed: " + why.message(),
               {"subgroup", why.context().rank, why.context().peer});
}

}  // namespace

std::optional<Error> loss_in(Engine& engine) {
  const HostSplit* const split = engine.split();
  net::Host* const host = split != nullptr ? split->local.host() : engine.host();
  // With two levels, a failure of the host is soon one of the endpoint, too.
  if (host != nullptr && split == nullptr) {
    if (const auto failure = host->failure()) return given_up(*failure);
  }
  if (const auto failure = engine.endpoint().failure()) return given_up(*failure);
  const auto local = host != nullptr ? host->lost_peer() : std::nullopt;
  if (!local) return std::nullopt;
  const int rank =
      split == nullptr
          ? *local
          : split->hosts[static_cast<std::size_t>(split->host)][static_cast<std::size_t>(*local)];
  return Error(Errc::kPeerLost,
               "rank " + std::to_string(rank) + " has died while ranks of its group met",
               {"subgroup", engine.endpoint().rank(), rank});
}

void run_direct(net::Direct& direct, Collective collective, const net::DirectArgs& args) {
  switch (collective) {
    case Collective::kAllReduce: return direct.all_reduce(args);
    case Collective::kReduceScatter: return direct.reduce_scatter(args);
    case Collective::kAllGather: return direct.all_gather(args);
    case Collective::kBroadcast: return direct.broadcast(args);
    case Collective::kReduce: return direct.reduce(args);
    case Collective::kGather: return direct.gather(args);
    case Collective::kScatter: return direct.scatter(args);
    case Collective::kAllToAll: return direct.all_to_all(args);
    case Collective::kBarrier: return direct.barrier(args);
  }
}

std::unique_ptr<Engine> make_direct_engine(std::unique_ptr<net::Host> host,
                                           std::unique_ptr<net::Endpoint> endpoint,
                                           std::chrono::nanoseconds timeout) {
  return std::make_unique<DirectEngine>(std::move(host), std::move(endpoint), timeout);
}

}  // namespace weft::comm::internal
