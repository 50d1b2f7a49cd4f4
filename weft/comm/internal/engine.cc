#include "weft/comm/internal/engine.h"

#include <ATen/ops/empty.h>

#include "weft/kernels/reduce.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

class DirectEngine final : public Engine {
 public:
  DirectEngine(std::unique_ptr<net::Host> host, std::unique_ptr<net::Endpoint> endpoint,
               std::chrono::nanoseconds timeout)
      : host_(std::move(host)), endpoint_(std::move(endpoint)), direct_(*host_, timeout) {}

  net::Endpoint& endpoint() override { return *endpoint_; }
  net::Host* host() override { return host_.get(); }
  std::string describe() const override { return "shared memory"; }
  Traffic traffic() override {
    return {endpoint_->sent_bytes(), direct_.moved_bytes() + host_->moved_bytes()};
  }
  void fail(const Error& why) noexcept override {
    host_->fail(why);
    endpoint_->abort(why);
  }
  void stop(const Error& why) noexcept override {
    host_->fail(why);
    endpoint_->fail(why);
  }

 private:
  void perform(Collective collective, const net::DirectArgs& args) override {
    run_direct(direct_, collective, args);
  }
  bool rounds_once() const override { return true; }

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

void Engine::run(Collective collective, const net::DirectArgs& args) {
  const bool sums = reduces(collective);
  WEFT_REQUIRE(!sums || kernels::has_operation(args.dtype, args.op),
               std::string(schedule::to_string(collective)) + ": " +
                   kernels::no_operation(args.dtype, args.op));
  if (sums && args.op == ReduceOp::kAvg && args.dtype == DType::kF16 && !rounds_once())
    return average_halves(collective, args);
  perform(collective, args);
}

void Engine::average_halves(Collective collective, const net::DirectArgs& args) {
  const bool scatters = collective == Collective::kReduceScatter;
  const std::int64_t inputs = scatters ? args.count * endpoint().world() : args.count;
  const at::Tensor input = at::empty({inputs}, at::kFloat);
  const at::Tensor output = scatters ? at::empty({args.count}, at::kFloat) : input;
  kernels::cast(input.data_ptr(), DType::kF32, args.input, DType::kF16, inputs);
  net::DirectArgs wide = args;
  wide.input = input.data_ptr();
  wide.output = args.output == nullptr ? nullptr : output.data_ptr();
  wide.dtype = DType::kF32;
  wide.is_half = true;
  perform(collective, wide);
  if (args.output != nullptr)
    kernels::cast(args.output, DType::kF16, output.data_ptr(), DType::kF32, args.count);
}

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
