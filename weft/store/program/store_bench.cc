// Latency of the store through real store processes on loopback, and the time without a leader.
//
//   build/release/weft/store/program/weft_store_program_bench
//
// nodes:1 one store process; nodes:3 three, asked at the leader (at:0) or at another one (at:1).
#include <benchmark/benchmark.h>

#include <thread>

#include "weft/store/testing/store_processes.h"

namespace weft::store {
namespace {

using namespace std::chrono_literals;

Deadline patience() { return Deadline::in(20s); }

class Nodes {
 public:
  explicit Nodes(std::uint32_t count) {
    for (std::uint32_t node = 0; node < count; ++node) {
      processes_.push_back(std::make_unique<StoreProcess>(
          StoreProcess::Options{.program = WEFT_STORE_PROGRAM,
                                .node = node,
                                .nodes = count,
                                .seed = node == 0 ? "" : processes_[0]->address()}));
      clients_.push_back(std::make_unique<Client>(processes_.back()->socket()));
    }
    leader();
  }
  // The leader, once all nodes decide.
  std::uint32_t leader(std::uint32_t asked = 0) {
    for (;;) {
      const StoreStatus status = clients_[asked]->status(patience());
      if (status.leader && status.voters.size() == processes_.size()) return *status.leader;
      std::this_thread::sleep_for(5ms);
    }
  }
  StoreProcess& process(std::uint32_t node) { return *processes_[node]; }
  Client& client(std::uint32_t node) { return *clients_[node]; }

 private:
  std::vector<std::unique_ptr<StoreProcess>> processes_;
  std::vector<std::unique_ptr<Client>> clients_;
};

void set(benchmark::State& state) {
  Nodes nodes(static_cast<std::uint32_t>(state.range(0)));
  const auto count = static_cast<std::uint32_t>(state.range(0));
  Client& client =
      nodes.client((nodes.leader() + static_cast<std::uint32_t>(state.range(1))) % count);
  for (auto _ : state) client.set({"key", "value"}, patience());
}

void get(benchmark::State& state) {
  Nodes nodes(static_cast<std::uint32_t>(state.range(0)));
  const auto count = static_cast<std::uint32_t>(state.range(0));
  Client& client =
      nodes.client((nodes.leader() + static_cast<std::uint32_t>(state.range(1))) % count);
  client.set({"key", "value"}, patience());
  for (auto _ : state) benchmark::DoNotOptimize(client.get("key", patience()));
}

// From the kill of the leader to the next answer of another node.
void failover(benchmark::State& state) {
  Nodes nodes(3);
  for (auto _ : state) {
    const std::uint32_t leader = nodes.leader(), other = (leader + 1) % 3;
    const auto start = Deadline::Clock::now();
    nodes.process(leader).kill();
    nodes.client(other).set({"key", "value"}, patience());
    state.SetIterationTime(std::chrono::duration<double>(Deadline::Clock::now() - start).count());
    nodes.process(leader).start();
    nodes.leader(leader);
  }
}

// From the kill of the only process to the next answer of its successor.
void restart(benchmark::State& state) {
  Nodes nodes(1);
  for (auto _ : state) {
    const auto start = Deadline::Clock::now();
    nodes.process(0).kill();
    nodes.process(0).start();
    nodes.client(0).set({"key", "value"}, patience());
    state.SetIterationTime(std::chrono::duration<double>(Deadline::Clock::now() - start).count());
  }
}

// From the start of three processes to a store in which all of them decide.
void formation(benchmark::State& state) {
  for (auto _ : state) {
    const auto start = Deadline::Clock::now();
    const Nodes nodes(3);
    state.SetIterationTime(std::chrono::duration<double>(Deadline::Clock::now() - start).count());
  }
}

BENCHMARK(set)->ArgNames({"nodes", "at"})->Args({1, 0})->Args({3, 0})->Args({3, 1})->UseRealTime();
BENCHMARK(get)->ArgNames({"nodes", "at"})->Args({1, 0})->Args({3, 0})->Args({3, 1})->UseRealTime();
BENCHMARK(failover)->UseManualTime()->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(restart)->UseManualTime()->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(formation)->UseManualTime()->Iterations(10)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft::store
