#include "weft/compress/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "weft/base/deadline.h"

namespace weft::compress {
namespace {

constexpr int kRuns = 3;

void pretend(const Round& round, int world) {
  if (round.send == nullptr) return;
  const auto block = static_cast<std::size_t>(round.count) * size_of(round.dtype);
  for (int rank = 0; rank < world; ++rank) {
    const std::size_t from =
        round.how == Round::How::kAllToAll ? static_cast<std::size_t>(rank) * block : 0;
    std::memcpy(static_cast<std::byte*>(round.data) + static_cast<std::size_t>(rank) * block,
                static_cast<const std::byte*>(round.send) + from, block);
  }
}

// The least of some runs with the largest buffer, scaled to all of them.
double seconds_of_coding(const Spec& spec, const std::vector<Unit>& buffers) {
  using Clock = std::chrono::steady_clock;
  const auto largest =
      std::max_element(buffers.begin(), buffers.end(),
                       [](const Unit& a, const Unit& b) { return a.count < b.count; });
  double all = 0;
  for (const Unit& unit : buffers) all += static_cast<double>(unit.count);
  if (largest == buffers.end() || largest->count == 0) return 0;
  const auto reducer = make_reducer(spec, *largest);
  std::vector<float> values(static_cast<std::size_t>(largest->count)), work;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 125.0f;
  double least = 0;
  for (int run = 0; run < kRuns; ++run) {
    work = values;
    const auto start = Clock::now();
    reducer->begin(work.data(), spec.warmup + run);
    while (const auto next = reducer->next()) pretend(*next, largest->world);
    const double seconds = seconds_since(start);
    least = run == 0 ? seconds : std::min(least, seconds);
  }
  return least * all / static_cast<double>(largest->count);
}

}  // namespace

Candidate measure(const Spec& spec, const std::vector<Unit>& buffers) {
  double sent = 0, plain = 0;
  int more_rounds = 0;
  for (const Unit& unit : buffers) {
    const auto reducer = make_reducer(spec, unit);
    sent += static_cast<double>(reducer->bytes_sent());
    plain += static_cast<double>(make_reducer({}, unit)->bytes_sent());
    const std::string exchange = reducer->exchange();
    more_rounds += exchange == "sharded" || exchange == "low rank" ? 1 : 0;
  }
  return {spec, seconds_of_coding(spec, buffers), plain > 0 ? sent / plain : 0, more_rounds};
}

}  // namespace weft::compress
