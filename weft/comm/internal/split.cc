#include "weft/comm/internal/split.h"

#include "weft/comm/group.h"
#include "weft/comm/internal/transport.h"
#include "weft/comm/internal/two_level.h"
#include "weft/comm/internal/view_endpoint.h"
#include "weft/comm/internal/weft_backend.h"

namespace weft::comm::internal {
namespace {

constexpr net::Channel kAcross = net::Channel{1} << 40;

// The ranks of one host, within a group over several hosts.
class LocalEngine final : public Engine {
 public:
  LocalEngine(std::shared_ptr<LinkedTransports> transports, std::chrono::nanoseconds timeout)
      : transports_(std::move(transports)),
        rings_(make_rings(transports_->host(), transports_->endpoint()->epoch(), timeout,
                          [&all = *transports_](const char* operation) { all.check(operation); })),
        direct_(transports_->host(), timeout) {}

  net::Endpoint& endpoint() override { return *rings_; }
  net::Host* host() override { return &transports_->host(); }
  std::string describe() const override { return "shared memory"; }
  Traffic traffic() override { return {rings_->sent_bytes(), direct_.moved_bytes()}; }
  void fail(const Error& why) noexcept override {
    rings_->abort(why);
    transports_->fail(why);
  }
  void stop(const Error& why) noexcept override {
    rings_->fail(why);
    transports_->stop(why);
  }

 private:
  void perform(schedule::Collective collective, const net::DirectArgs& args) override {
    transports_->guard(schedule::to_string(collective),
                       [&] { run_direct(direct_, collective, args); });
  }
  bool rounds_once() const override { return true; }

  const std::shared_ptr<LinkedTransports> transports_;
  const std::unique_ptr<net::Endpoint> rings_;
  net::Direct direct_;
};

// One rank of each host.
class AcrossEngine final : public Engine {
 public:
  AcrossEngine(std::shared_ptr<LinkedTransports> transports, const std::vector<int>& ranks,
               const Tuning& tuning)
      : transports_(std::move(transports)),
        messages_(make_message_engine(make_view(transports_->endpoint(), ranks, kAcross), tuning)) {
  }

  net::Endpoint& endpoint() override { return messages_->endpoint(); }
  net::Host* host() override { return nullptr; }
  std::string describe() const override { return transports_->endpoint()->name(); }
  bool has_ordered_sums() const override { return messages_->has_ordered_sums(); }
  void fail(const Error& why) noexcept override { transports_->fail(why); }
  void stop(const Error& why) noexcept override { transports_->stop(why); }

 private:
  void perform(schedule::Collective collective, const net::DirectArgs& args) override {
    transports_->guard(schedule::to_string(collective), [&] { messages_->run(collective, args); });
  }

  const std::shared_ptr<LinkedTransports> transports_;
  const std::unique_ptr<Engine> messages_;
};

// All ranks.
class SplitEngine final : public Engine {
 public:
  SplitEngine(std::shared_ptr<LinkedTransports> transports, std::unique_ptr<HostSplit> split,
              std::chrono::nanoseconds timeout, const Tuning& tuning)
      : transports_(std::move(transports)),
        split_(std::move(split)),
        flat_(make_message_engine(make_view(transports_->endpoint(), everybody(), 0), tuning)),
        levels_(*transports_, *flat_, timeout, tuning) {}

  net::Endpoint& endpoint() override { return *transports_->endpoint(); }
  net::Host* host() override { return nullptr; }
  std::string describe() const override {
    return "shared memory on each of " + std::to_string(transports_->map().num_hosts()) +
           " hosts, " + transports_->endpoint()->name() + " between them";
  }
  void fail(const Error& why) noexcept override { transports_->fail(why); }
  void stop(const Error& why) noexcept override { transports_->stop(why); }
  bool has_ordered_sums() const override { return flat_->has_ordered_sums(); }
  const HostSplit* split() override { return split_.get(); }
  // Views send through the endpoint, so it counts the messages of all levels but the host's rings.
  Traffic traffic() override {
    const Traffic local = split_->local.traffic();
    return {transports_->endpoint()->sent_bytes() + local.sent_bytes,
            transports_->host().moved_bytes() + local.shared_bytes};
  }

 private:
  void perform(schedule::Collective collective, const net::DirectArgs& args) override {
    transports_->guard(schedule::to_string(collective), [&] { levels_.run(collective, args); });
  }

  std::vector<int> everybody() const {
    std::vector<int> ranks(static_cast<std::size_t>(transports_->map().world));
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    return ranks;
  }

  const std::shared_ptr<LinkedTransports> transports_;
  const std::unique_ptr<HostSplit> split_;
  const std::unique_ptr<Engine> flat_;
  TwoLevel levels_;
};

std::unique_ptr<HostSplit> make_split(const std::shared_ptr<LinkedTransports>& transports,
                                      const SplitOptions& options) {
  const HostMap& map = transports->map();
  // Errors of both levels name ranks of the whole group (LinkedTransports::guard).
  const auto group_of = [&](std::unique_ptr<Engine> engine, int rank, int size, const char* name) {
    WeftBackend::Origin origin;
    origin.job_ranks = options.job_ranks;
    return Group(c10::make_intrusive<WeftBackend>(std::move(engine), rank, size, options.timeout,
                                                  std::move(origin)),
                 name);
  };
  auto local = group_of(std::make_unique<LocalEngine>(transports, options.timeout), map.local,
                        map.local_world(), "local");
  std::optional<Group> across;
  if (map.local < map.smallest()) {
    std::vector<int> ranks;
    for (const auto& host : map.hosts) ranks.push_back(host[static_cast<std::size_t>(map.local)]);
    across = group_of(std::make_unique<AcrossEngine>(transports, ranks, options.tuning), map.host,
                      map.num_hosts(), "across");
  }
  return std::make_unique<HostSplit>(
      HostSplit{std::move(local), std::move(across), map.smallest(), map.host, map.hosts});
}

}  // namespace

std::unique_ptr<Engine> make_split_engine(std::shared_ptr<net::Host> host,
                                          std::shared_ptr<net::Endpoint> endpoint,
                                          const HostMap& map, const SplitOptions& options) {
  auto transports = std::make_shared<LinkedTransports>(std::move(host), std::move(endpoint), map);
  auto split = make_split(transports, options);
  return std::make_unique<SplitEngine>(std::move(transports), std::move(split), options.timeout,
                                       options.tuning);
}

}  // namespace weft::comm::internal
