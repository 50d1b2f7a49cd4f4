// Measures tokens per second of encode(). WEFT_BENCH_TEXT and WEFT_BENCH_TOKENIZER name the files.
// The defaults are the small files of the tests, whose words are nearly all in the cache.
#include "weft/data/text/tokenizer.h"

#include <benchmark/benchmark.h>

#include <cstdlib>

#include "weft/base/file.h"

namespace weft::data::text {
namespace {

std::string named(const char* variable, const char* otherwise) {
  const char* const path = std::getenv(variable);
  return path != nullptr ? path : otherwise;
}

void encode_text(benchmark::State& state) {
  const std::string text =
      read_file(named("WEFT_BENCH_TEXT", WEFT_REFERENCE "text.txt"), std::size_t{1} << 30);
  const auto tokenizer =
      load_tokenizer(named("WEFT_BENCH_TOKENIZER", WEFT_REFERENCE "llama3.json"));
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    const auto fresh = tokenizer->clone();  // Its cache is empty.
    fresh->encode(text, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  if (tokenizer->round_trips() && tokenizer->decode(ids) != text)
    state.SkipWithError("the text does not come back");
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
}
BENCHMARK(encode_text)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft::data::text
