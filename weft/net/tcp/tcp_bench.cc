// Measures ping-pong and bandwidth over loopback, with two ranks as threads. Rank 0 checks the last
// received byte before the measurement.
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstring>

#include "weft/net/testing/ranks.h"

namespace weft::net {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

// Rank 1 answers with `exchange` until a message that starts with 1.
class Partner {
 public:
  Partner(Endpoint& endpoint, std::size_t bytes, bool both_ways)
      : thread_([&endpoint, bytes, both_ways] {
          std::vector<std::byte> in(bytes), out(bytes);
          do {
            const Send send{0, out};
            const Recv recv{0, in};
            if (both_ways) {
              endpoint.exchange(1, {&send, 1}, {&recv, 1}, soon());
            } else {
              endpoint.exchange(1, {}, {&recv, 1}, soon());
              endpoint.exchange(1, {&send, 1}, {}, soon());
            }
          } while (in.front() != std::byte{1});
        }) {}
  ~Partner() { thread_.join(); }

 private:
  std::thread thread_;
};

void run(benchmark::State& state, bool both_ways, ZeroCopy zero_copy = ZeroCopy::kWhereItHelps) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  auto group = internal::make_tcp(2, {.zero_copy = zero_copy});
  std::vector<std::byte> out(bytes), in(bytes);
  const Send send{1, out};
  const Recv recv{1, in};
  const auto round = [&] {
    if (both_ways) {
      group[0]->exchange(1, {&send, 1}, {&recv, 1}, soon());
    } else {
      group[0]->exchange(1, {&send, 1}, {}, soon());
      group[0]->exchange(1, {}, {&recv, 1}, soon());
    }
  };
  const Partner partner(*group[1], bytes, both_ways);
  in.back() = std::byte{9};
  for (int i = 0; i < 20; ++i) round();
  if (in.back() != std::byte{0}) state.SkipWithError("the answer differs from the sent data");
  for (auto _ : state) round();
  out.front() = std::byte{1};
  round();
  state.SetBytesProcessed(
      static_cast<std::int64_t>(state.iterations() * bytes * (both_ways ? 2 : 1)));
}

void BM_TcpPingPong(benchmark::State& state) { run(state, false); }
void BM_TcpExchange(benchmark::State& state) { run(state, true); }
// BM_TcpExchange switches zero-copy off by itself, because the kernel copies on loopback. Of these
// two, the first never uses zero-copy, and the second always does.
void BM_TcpExchangeCopied(benchmark::State& state) { run(state, true, ZeroCopy::kNever); }
void BM_TcpExchangeLent(benchmark::State& state) { run(state, true, ZeroCopy::kAlways); }

BENCHMARK(BM_TcpPingPong)
    ->Arg(8)
    ->Arg(4096)
    ->Arg(1 << 20)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_TcpExchangeCopied)
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->Arg(12'500'000)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_TcpExchangeLent)
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->Arg(12'500'000)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_TcpExchange)
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->Arg(12'500'000)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace weft::net
