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

}  // namespace

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
