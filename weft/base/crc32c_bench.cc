#include "weft/base/crc32c.h"

#include <benchmark/benchmark.h>

#include <vector>

namespace {

void crc32c_bytes(benchmark::State& state) {
  const std::vector<char> bytes(static_cast<std::size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(weft::crc32c(bytes.data(), bytes.size()));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(crc32c_bytes)->Arg(64)->Arg(4096)->Arg(1 << 20);

}  // namespace
