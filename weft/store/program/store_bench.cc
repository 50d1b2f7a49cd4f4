// Latency of the store through real store processes on loopback, and the time without a leader.
//
//   build/release/weft/store/program/weft_store_program_bench
//
// nodes:1 one store process; nodes:3 three, asked at the leader (at:0) or at another one (at:1).
#include <benchmark/benchmark.h>

#include <thread>

#include "weft/base/deadline.h"
#include "weft/store/testing/store_processes.h"

namespace weft::store {
namespace {

using namespace std::chrono_literals;

Deadline patience() { return Deadline::in(20s); }

// The client of the leader's node (at 0), or of another one.
Client& client_at(StoreNodes& nodes, std::int64_t at) {
  return nodes.client((nodes.leader(0) + static_cast<std::uint32_t>(at)) % nodes.size());
}

void set(benchmark::State& state) {
  StoreNodes nodes(static_cast<std::uint32_t>(state.range(0)));
  Client& client = client_at(nodes, state.range(1));
  for (auto _ : state) client.set({"key", "value"}, patience());
}

void get(benchmark::State& state) {
  StoreNodes nodes(static_cast<std::uint32_t>(state.range(0)));
  Client& client = client_at(nodes, state.range(1));
  client.set({"key", "value"}, patience());
  for (auto _ : state) benchmark::DoNotOptimize(client.get("key", patience()));
}

// From the kill of the leader to the next answer of another node.
void failover(benchmark::State& state) {
  StoreNodes nodes(3);
  for (auto _ : state) {
    const std::uint32_t leader = nodes.leader(0), other = (leader + 1) % 3;
    const auto start = Deadline::Clock::now();
    nodes.process(leader).kill();
    nodes.client(other).set({"key", "value"}, patience());
    state.SetIterationTime(seconds_since(start));
    nodes.process(leader).start();
    nodes.leader(leader);
  }
}

// From the kill of the only process to the next answer of its successor.
void restart(benchmark::State& state) {
  StoreNodes nodes(1);
  for (auto _ : state) {
    const auto start = Deadline::Clock::now();
    nodes.process(0).kill();
    nodes.process(0).start();
    nodes.client(0).set({"key", "value"}, patience());
    state.SetIterationTime(seconds_since(start));
  }
}

// From the start of three processes to a store in which all of them decide.
void formation(benchmark::State& state) {
  for (auto _ : state) {
    const auto start = Deadline::Clock::now();
    StoreNodes nodes(3);
    nodes.leader(0);
    state.SetIterationTime(seconds_since(start));
  }
}

BENCHMARK(set)->ArgNames({"nodes", "at"})->Args({1, 0})->Args({3, 0})->Args({3, 1})->UseRealTime();
BENCHMARK(get)->ArgNames({"nodes", "at"})->Args({1, 0})->Args({3, 0})->Args({3, 1})->UseRealTime();
BENCHMARK(failover)->UseManualTime()->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(restart)->UseManualTime()->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(formation)->UseManualTime()->Iterations(10)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft::store
