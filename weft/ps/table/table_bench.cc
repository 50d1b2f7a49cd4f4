// Pulls and pushes of a table of 1 M rows of 64 floats, keys spread at random, one thread. An item
// is a row.
#include "weft/ps/table/table.h"

#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "weft/base/random.h"

namespace weft::ps {
namespace {

constexpr std::int64_t kFloats = 64;
constexpr std::uint64_t kRows = 1'000'000;
constexpr std::size_t kBatch = 4096;

// The table with all rows. Of one rule at a time, so that the benchmark fits in little memory.
Table& table_of(const RowRule& rule) {
  static std::unique_ptr<Table> table;
  static std::size_t kind = std::variant_npos;
  if (rule.index() == kind) return *table;
  table.reset();
  table = std::make_unique<Table>(
      TableOptions{.row_floats = kFloats, .rule = rule, .initial_range = 0.01f});
  kind = rule.index();
  std::vector<std::uint64_t> keys(kBatch);
  std::vector<float> out(kBatch * kFloats);
  for (std::uint64_t first = 0; first < kRows; first += kBatch) {
    for (std::size_t i = 0; i < kBatch; ++i) keys[i] = (first + i) % kRows;
    table->pull(keys, out);
  }
  return *table;
}

struct Batches {
  Random random{1};
  std::vector<std::uint64_t> keys = std::vector<std::uint64_t>(kBatch);
  std::vector<float> values = std::vector<float>(kBatch * kFloats, 1e-3f);

  void draw() {
    for (auto& key : keys) key = random.below(kRows);
  }
};

void pull(benchmark::State& state) {
  Table& table = table_of(Adagrad{});
  Batches batches;
  for (auto _ : state) {
    state.PauseTiming();
    batches.draw();
    state.ResumeTiming();
    table.pull(batches.keys, batches.values);
    benchmark::DoNotOptimize(batches.values.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}
BENCHMARK(pull);

template <class Rule>
void push(benchmark::State& state) {
  Table& table = table_of(Rule{});
  Batches batches;
  for (auto _ : state) {
    state.PauseTiming();
    batches.draw();
    state.ResumeTiming();
    table.push(batches.keys, batches.values);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}
BENCHMARK_TEMPLATE(push, Adagrad);
BENCHMARK_TEMPLATE(push, Add);
BENCHMARK_TEMPLATE(push, kernels::Sgd);
BENCHMARK_TEMPLATE(push, kernels::Adam);
BENCHMARK_TEMPLATE(push, Ftrl);

// Rows that are not there yet.
void create(benchmark::State& state) {
  Table table({.row_floats = kFloats, .rule = Adagrad{}, .initial_range = 0.01f});
  Batches batches;
  for (auto _ : state) {
    for (auto& key : batches.keys) key = batches.random.next_u64();
    table.pull(batches.keys, batches.values);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}
BENCHMARK(create)->Iterations(200);

}  // namespace
}  // namespace weft::ps
