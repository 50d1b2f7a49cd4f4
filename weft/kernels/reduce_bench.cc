// Measures the reductions of an all-reduce within a host, compared with a plain loop that the
// compiler vectorizes.
//
// The second argument of each benchmark is 1 if the destinations are the sources (as in the arena),
// and 0 if they are separate arrays.
#include "weft/kernels/reduce.h"

#include <benchmark/benchmark.h>

#include <memory>
#include <new>
#include <vector>

namespace {

using weft::kernels::ReduceArgs;

constexpr std::int64_t kSizes[] = {16 << 10, 256 << 10, 4 << 20, 25'000'000, 100'000'000};

struct Free {
  void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t(4096)); }
};
using Floats = std::unique_ptr<float[], Free>;

std::vector<Floats> make_arrays(int number, std::int64_t count) {
  std::vector<Floats> arrays;
  for (int a = 0; a < number; ++a) {
    arrays.emplace_back(new (std::align_val_t(4096)) float[static_cast<std::size_t>(count)]);
    // Zeros stay zeros, even if the reduction is repeated in place.
    for (std::int64_t i = 0; i < count; ++i) arrays.back()[static_cast<std::size_t>(i)] = 0.0f;
  }
  return arrays;
}

// A hand-written loop, compiled with -O3 for the baseline instruction set.
#ifdef __clang__
__attribute__((noinline)) void plain_loop(float* a, float* b, std::int64_t count) {
#pragma clang loop vectorize(assume_safety)
#else
__attribute__((optimize("O3"), noinline)) void plain_loop(float* a, float* b, std::int64_t count) {
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}

void report(benchmark::State& state, std::int64_t bytes_moved) {
  state.SetBytesProcessed(state.iterations() * bytes_moved);
}

void PlainLoop(benchmark::State& state) {
  const std::int64_t count = state.range(0) / 4;
  const auto arrays = make_arrays(2, count);
  for (auto _ : state) {
    plain_loop(arrays[0].get(), arrays[1].get(), count);
    benchmark::ClobberMemory();
  }
  report(state, 4 * state.range(0));
}

void run_reduce(benchmark::State& state, int num_sources, int num_destinations,
                const ReduceArgs& base) {
  ReduceArgs args = base;
  const bool in_place = state.range(1) != 0;
  args.count = state.range(0) / static_cast<std::int64_t>(size_of(args.dtype));
  const auto arrays =
      make_arrays(num_sources + (in_place ? 0 : num_destinations), state.range(0) / 4);
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (int s = 0; s < num_sources; ++s)
    sources.push_back(arrays[static_cast<std::size_t>(s)].get());
  for (int d = 0; d < num_destinations; ++d)
    destinations.push_back(arrays[static_cast<std::size_t>(in_place ? d : num_sources + d)].get());
  for (auto _ : state) {
    weft::kernels::reduce(destinations.data(), num_destinations, sources.data(), num_sources, args);
    benchmark::ClobberMemory();
  }
  report(state, (num_sources + num_destinations) * state.range(0));
}

void TwoToTwo(benchmark::State& state) { run_reduce(state, 2, 2, {}); }
void TwoToOne(benchmark::State& state) { run_reduce(state, 2, 1, {}); }
void TwoToTwoWeighted(benchmark::State& state) {
  const double weights[] = {0.25, 0.75};
  run_reduce(state, 2, 2, {.weights = weights});
}
void FourToFour(benchmark::State& state) { run_reduce(state, 4, 4, {}); }
void TwoToTwoBrain(benchmark::State& state) {
  run_reduce(state, 2, 2, {.dtype = weft::DType::kBF16});
}
void TwoToTwoHalf(benchmark::State& state) {
  run_reduce(state, 2, 2, {.dtype = weft::DType::kF16});
}

void SumOfSquares(benchmark::State& state) {
  const auto arrays = make_arrays(1, state.range(0) / 4);
  for (auto _ : state)
    benchmark::DoNotOptimize(weft::kernels::sum_of_squares(arrays[0].get(), state.range(0) / 4));
  report(state, state.range(0));
}

void IsWithin(benchmark::State& state) {
  const auto arrays = make_arrays(1, state.range(0) / 4);
  for (auto _ : state) {
    benchmark::DoNotOptimize(weft::kernels::is_within(arrays[0].get(), state.range(0) / 4, 1e30f));
  }
  report(state, state.range(0));
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t bytes : kSizes) bench->Arg(bytes);
  bench->ThreadRange(1, 2)->UseRealTime()->MinTime(0.1);
}
void sizes_and_places(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t bytes : kSizes) {
    for (const int in_place : {1, 0}) bench->Args({bytes, in_place});
  }
  bench->ThreadRange(1, 2)->UseRealTime()->MinTime(0.1);
}

BENCHMARK(PlainLoop)->Apply(sizes);
BENCHMARK(TwoToTwo)->Apply(sizes_and_places);
BENCHMARK(TwoToOne)->Apply(sizes_and_places);
BENCHMARK(TwoToTwoWeighted)->Apply(sizes_and_places);
BENCHMARK(FourToFour)->Apply(sizes_and_places);
BENCHMARK(TwoToTwoBrain)->Apply(sizes_and_places);
BENCHMARK(TwoToTwoHalf)->Apply(sizes_and_places);
BENCHMARK(IsWithin)->Apply(sizes);
BENCHMARK(SumOfSquares)->Apply(sizes);

}  // namespace
