// Measures shared-memory messages between two processes, each bound to a processor as mpirun binds
// them: half of a round trip for all sizes, the rate of small messages, and the bandwidth of large
// ones in one and in both directions. On a noisy machine, use --benchmark_repetitions=20 and take
// the smallest time.
#include <benchmark/benchmark.h>
#include <sched.h>

#include "weft/net/shm/testing/process_ranks.h"

namespace {

using namespace weft::net;
using namespace std::chrono_literals;

constexpr Channel kOrders = 1;
constexpr Channel kData = 2;
constexpr Channel kReplies = 3;

// Rank 1 follows the orders of rank 0. `mode` 0: echo, 1: receive, 2: exchange, for the given
// rounds of `bytes` each. -1: end.
struct Order {
  int mode;
  std::int64_t bytes;
  std::int64_t rounds;
};

void round_trip(Endpoint& endpoint, int mode, std::span<std::byte> out, std::span<std::byte> in) {
  const int peer = 1 - endpoint.rank();
  const auto deadline = weft::Deadline::in(60s);
  const Send send{peer, out};
  const Recv recv{peer, in};
  const bool first = endpoint.rank() == 0;
  if (mode == 2) return endpoint.exchange(kData, {&send, 1}, {&recv, 1}, deadline);
  if (first) endpoint.exchange(kData, {&send, 1}, {}, deadline);
  if (!first || mode == 0) endpoint.exchange(kData, {}, {&recv, 1}, deadline);
  if (!first && mode == 0) endpoint.exchange(kData, {&send, 1}, {}, deadline);
}

void serve(Endpoint& endpoint) {
  std::vector<std::byte> out(std::size_t{32} << 20);
  std::vector<std::byte> in(out.size());
  for (;;) {
    Order order{};
    endpoint.recv(0, kOrders, std::as_writable_bytes(std::span(&order, 1)),
                  weft::Deadline::in(600s));
    if (order.mode < 0) return;
    const auto bytes = static_cast<std::size_t>(order.bytes);
    for (std::int64_t i = 0; i < order.rounds; ++i)
      round_trip(endpoint, order.mode, std::span(out).first(bytes), std::span(in).first(bytes));
    endpoint.send(0, kReplies, std::span(out).first(1), weft::Deadline::in(60s));
  }
}

// On a machine with fewer processors, the ranks share them.
class Bound {
 public:
  explicit Bound(int processor) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~Bound() { sched_setaffinity(0, sizeof before_, &before_); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  cpu_set_t before_{};
};

Endpoint& rank_zero() {
  static const std::size_t bytes = shm_region_bytes(2);
  static auto* memory = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  static const pid_t child = [] {
    const pid_t pid = fork();
    if (pid == 0) {
      const Bound second(1);
      serve(*make_shm({1, 2, 0, {memory, bytes}, nullptr, {}, 0}));
      _exit(0);
    }
    return pid;
  }();
  static const auto endpoint = make_shm({0, 2, 0, {memory, bytes}, nullptr, {}, 0});
  static const bool ends =
      std::atexit([] {
        const Order order{-1, 0, 0};
        endpoint->send(1, kOrders, std::as_bytes(std::span(&order, 1)), weft::Deadline::in(10s));
        waitpid(child, nullptr, 0);
      }) == 0;
  benchmark::DoNotOptimize(ends);
  return *endpoint;
}

void run(benchmark::State& state, int mode, int ways) {
  const std::int64_t rounds = state.range(0) <= 65536 ? 1000 : 4;
  const Bound first(0);
  Endpoint& endpoint = rank_zero();
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  for (auto _ : state) {
    const Order order{mode, state.range(0), rounds};
    endpoint.send(1, kOrders, std::as_bytes(std::span(&order, 1)), weft::Deadline::in(60s));
    for (std::int64_t i = 0; i < rounds; ++i) round_trip(endpoint, mode, out, in);
    endpoint.recv(1, kReplies, std::span(in).first(1), weft::Deadline::in(60s));
  }
  state.SetBytesProcessed(state.iterations() * rounds * ways * state.range(0));
  state.counters["one_way"] =
      benchmark::Counter(static_cast<double>(state.iterations() * rounds * ways),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void PingPong(benchmark::State& state) { run(state, 0, 2); }
void OneWay(benchmark::State& state) { run(state, 1, 1); }
void BothWays(benchmark::State& state) { run(state, 2, 2); }

BENCHMARK(PingPong)
    ->Arg(8)
    ->Arg(64)
    ->Arg(1024)
    ->Arg(4096)
    ->Arg(65536)
    ->Arg(1 << 20)
    ->Arg(25 << 20)
    ->UseRealTime();
BENCHMARK(OneWay)
    ->Arg(8)
    ->Arg(1 << 20)
    ->Arg(25'000'000)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BothWays)->Arg(1 << 20)->Arg(25'000'000)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
