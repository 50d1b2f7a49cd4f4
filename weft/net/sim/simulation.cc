#include "weft/net/sim/simulation.h"

#include <string>

#include "weft/net/sim/internal/endpoint.h"

namespace weft::net::sim {
namespace {

using namespace std::chrono_literals;

constexpr Time kTick = 100ms;

// Events in the trace besides packets.
enum class Mark : std::uint8_t { kFault = 16, kEnd };

bool is_rank(int rank, int world) { return rank >= 0 && rank < world; }

void check(const Options& o) {
  WEFT_REQUIRE(o.world >= 1 && o.streams >= 1,
               "a simulation needs at least one rank and one stream");
  const Link& link = o.link;
  WEFT_REQUIRE(link.latency > Time(0) && link.jitter >= Time(0) && link.bytes_per_second > 0,
               "a link's latency and bandwidth must be above 0");
  WEFT_REQUIRE(link.loss >= 0 && link.loss < 1 && link.duplicate >= 0 && link.duplicate < 1,
               "loss and duplicate must be in [0, 1]");
  for (const Fault& fault : o.faults) {
    const bool pair = fault.kind >= Fault::kPartition;
    WEFT_REQUIRE(
        is_rank(fault.a, o.world) && (!pair || (is_rank(fault.b, o.world) && fault.a != fault.b)),
        "a fault names ranks " + std::to_string(fault.a) + " and " + std::to_string(fault.b) +
            " of " + std::to_string(o.world));
  }
}

}  // namespace

class Simulation::World {
 public:
  explicit World(const Options& options)
      : options_(options),
        network_(options.world, options.link, options.seed),
        scheduler_(options.world) {
    for (int rank = 0; rank < options_.world; ++rank) {
      endpoints_.push_back(
          std::make_unique<internal::SimEndpoint>(rank, options_, network_, scheduler_));
    }
    network_.on_packet([this](internal::Packet& packet) { endpoint(packet.to).deliver(packet); });
    for (const Fault& fault : options_.faults)
      network_.after(fault.at, [this, fault] { happen(fault); });
    network_.after(kTick, [this] { tick(); });
  }

  std::vector<Outcome> run(const std::function<void(Endpoint&)>& body) {
    outcomes_.resize(endpoints_.size());
    scheduler_.run([&](int rank) { live(rank, body); }, [this] { return idle(); });
    return outcomes_;
  }

  internal::Network& network() { return network_; }
  internal::SimEndpoint& endpoint(int rank) { return *endpoints_[static_cast<std::size_t>(rank)]; }

 private:
  Outcome& outcome(int rank) { return outcomes_[static_cast<std::size_t>(rank)]; }

  void live(int rank, const std::function<void(Endpoint&)>& body) {
    try {
      body(endpoint(rank));
    } catch (const Error& error) {
      outcome(rank).error = error;
    } catch (const std::exception& error) {
      outcome(rank).error = Error(Errc::kInternal, std::string("the body threw: ") + error.what());
    }
    outcome(rank).ended = network_.now();
    network_.trace().note(Mark::kEnd, network_.now().count(), rank, outcome(rank).error ? 1 : 0);
    endpoint(rank).leave();
  }

  // Returns false to end all waiting ranks: they hang.
  bool idle() {
    if (network_.now() < options_.limit && network_.step()) return true;
    for (int rank = 0; rank < options_.world; ++rank) {
      if (scheduler_.ended(rank)) continue;
      outcome(rank).hung = true;
      outcome(rank).ended = network_.now();
    }
    return false;
  }

  void tick() {
    for (const auto& endpoint : endpoints_) endpoint->tick();
    network_.after(kTick, [this] { tick(); });
  }

  void happen(const Fault& fault) {
    network_.trace().note(Mark::kFault, network_.now().count(), fault.kind, fault.a, fault.b);
    switch (fault.kind) {
      case Fault::kKill: return die(fault.a, false);
      case Fault::kPowerOff: return die(fault.a, true);
      case Fault::kStop: return endpoint(fault.a).set_stopped(true);
      case Fault::kContinue: return endpoint(fault.a).set_stopped(false);
      case Fault::kPartition: return network_.set_partition(fault.a, fault.b, true);
      case Fault::kHeal: return network_.set_partition(fault.a, fault.b, false);
      case Fault::kCut: return endpoint(fault.a).cut(fault.b);
      case Fault::kDamage: return network_.damage_next(fault.a, fault.b);
    }
  }

  void die(int rank, bool power_off) {
    if (power_off) network_.silence(rank);
    if (scheduler_.ended(rank)) return;
    outcome(rank).died = true;
    outcome(rank).ended = network_.now();
    endpoint(rank).die(power_off);
  }

  const Options options_;
  internal::Network network_;
  internal::Scheduler scheduler_;
  std::vector<std::unique_ptr<internal::SimEndpoint>> endpoints_;
  std::vector<Outcome> outcomes_;
};

Simulation::Simulation(const Options& options) {
  check(options);
  world_ = std::make_unique<World>(options);
}

Simulation::~Simulation() = default;

std::vector<Outcome> Simulation::run(const std::function<void(Endpoint&)>& body) {
  return world_->run(body);
}

Deadline Simulation::in(Time timeout) const {
  return Deadline::at(internal::kEpoch + now() + timeout);
}

Time Simulation::now() const { return world_->network().now(); }

void Simulation::sleep(Endpoint& endpoint, Time time) {
  const Time until = now() + time;
  while (now() < until) world_->endpoint(endpoint.rank()).wait_until(until);
}

std::uint64_t Simulation::trace_hash() const { return world_->network().trace().hash(); }

const Counts& Simulation::counts() const { return world_->network().counts(); }

}  // namespace weft::net::sim
