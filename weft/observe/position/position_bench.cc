// Cost of positions on a rank's side. An operation promises to cost at most about 20 ns.
#include "weft/observe/position/position.h"

#include <benchmark/benchmark.h>

namespace weft::observe {
namespace {

void an_operation(benchmark::State& state) {
  std::uint64_t number = 0;
  constexpr ShortName kName = "all_reduce", kGroup = "world";
  for (auto _ : state) {
    const OperationScope scope({.name = kName, .group = kGroup, .number = ++number, .bytes = 8});
    benchmark::ClobberMemory();
  }
}
BENCHMARK(an_operation);

void a_wait(benchmark::State& state) {
  for (auto _ : state) {
    const WaitScope scope("step", 1);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(a_wait);

void an_activity(benchmark::State& state) {
  for (auto _ : state) set_activity(Activity::kForward);
}
BENCHMARK(an_activity);

void a_look_at_requests(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(page_header().requests.load(std::memory_order_relaxed));
}
BENCHMARK(a_look_at_requests);

}  // namespace
}  // namespace weft::observe
