#include "weft/strategy/shared_batches.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "weft/base/error.h"
#include "weft/strategy/internal/shared_memory.h"

namespace weft::strategy {
namespace {

// Both numbers in one word, so that no number is given out beyond an end that has just changed.
struct Range {
  std::uint32_t next = 0, end = 0;
};

std::uint64_t pack(Range range) { return std::uint64_t{range.end} << 32 | range.next; }
Range unpack(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
}

constexpr std::size_t kNumbers = sizeof(SharedBatches::Done) / sizeof(double);
// Draws of a worker that its ranks may be apart. They meet within each step, and a batch is drawn
// ahead.
constexpr std::uint32_t kDraws = 64;
constexpr std::uint32_t kNone = UINT32_MAX;

double* numbers_of(SharedBatches::Done& done) { return reinterpret_cast<double*>(&done); }
const double* numbers_of(const SharedBatches::Done& done) {
  return reinterpret_cast<const double*>(&done);
}

}  // namespace

struct alignas(64) SharedBatches::Counter {
  std::atomic<std::uint64_t> range;
  alignas(64) std::atomic<std::int64_t> not_finite;
  std::atomic<std::int64_t> first_step;
  std::atomic<std::int32_t> rank;
};
// Only its rank writes it.
struct alignas(64) SharedBatches::OfRank {
  std::array<std::atomic<double>, kNumbers> numbers;
};
// (number of the draw + 1) << 32 | what was drawn.
struct alignas(64) SharedBatches::Draws {
  std::array<std::atomic<std::uint64_t>, kDraws> drawn;
};

SharedBatches::Done& SharedBatches::Done::operator+=(const Done& other) {
  for (std::size_t i = 0; i < kNumbers; ++i) numbers_of(*this)[i] += numbers_of(other)[i];
  return *this;
}

SharedBatches::Done& SharedBatches::Done::operator-=(const Done& other) {
  for (std::size_t i = 0; i < kNumbers; ++i) numbers_of(*this)[i] -= numbers_of(other)[i];
  return *this;
}

SharedBatches::SharedBatches(const Group& ranks, int worker, int workers, bool is_first)
    : worker_(worker),
      workers_(workers),
      is_first_(is_first),
      memory_(std::make_unique<internal::SharedMemory>(
          ranks, sizeof(Counter) + sizeof(OfRank) * static_cast<std::size_t>(ranks.size()) +
                     sizeof(Draws) * static_cast<std::size_t>(workers))) {
  std::byte* at = memory_->data();
  counter_ = reinterpret_cast<Counter*>(at);
  of_ranks_ = reinterpret_cast<OfRank*>(at + sizeof(Counter));
  draws_ = reinterpret_cast<Draws*>(at + sizeof(Counter) +
                                    sizeof(OfRank) * static_cast<std::size_t>(ranks.size()));
}

SharedBatches::~SharedBatches() = default;

void SharedBatches::begin(std::int64_t count) {
  WEFT_REQUIRE(count >= 0 && count < INT32_MAX,
               "the workers' batches are counted below 2^31, not " + std::to_string(count) +
                   ": use a larger batch");
  memory_->workers().barrier();
  if (is_first_) {
    for (auto& draw : draws_[worker_].drawn) draw.store(0, std::memory_order_relaxed);
  }
  taken_ = 0;
  ended_ = false;
  if (memory_->workers().rank() == 0)
    counter_->range.store(pack({0, static_cast<std::uint32_t>(count)}));
  memory_->workers().barrier();
}

std::optional<std::int64_t> SharedBatches::take() {
  if (ended_) return std::nullopt;  // the first rank may draw no more
  const std::uint64_t tag = (std::uint64_t{taken_} + 1) << 32;
  std::atomic<std::uint64_t>& drawn = draws_[worker_].drawn[taken_ % kDraws];
  if (is_first_) {
    std::uint32_t number = kNone;
    std::uint64_t word = counter_->range.load();
    for (Range range = unpack(word); range.next < range.end; range = unpack(word)) {
      number = range.next;
      if (counter_->range.compare_exchange_weak(word, pack({range.next + 1, range.end}))) break;
      number = kNone;
    }
    drawn.store(tag | number, std::memory_order_release);
    memory_->notify();
  }
  std::uint64_t word = 0;
  memory_->wait(
      [&] {
        word = drawn.load(std::memory_order_acquire);
        return word >> 32 == tag >> 32;
      },
      [] { return -1; }, "take the next batch");
  ++taken_;
  const auto number = static_cast<std::uint32_t>(word);
  ended_ = number == kNone;
  if (ended_) return std::nullopt;
  return number;
}

void SharedBatches::close() {
  const auto several = static_cast<std::uint32_t>(workers_);
  std::uint64_t word = counter_->range.load();
  for (;;) {
    const Range range = unpack(word);
    const std::uint32_t whole = (range.next + several - 1) / several * several;
    if (whole >= range.end) return;
    if (counter_->range.compare_exchange_weak(word, pack({range.next, whole}))) return;
  }
}

std::int64_t SharedBatches::end() const { return unpack(counter_->range.load()).end; }

void SharedBatches::add(const Done& done) {
  constexpr std::size_t kMemory = offsetof(Done, memory_bytes) / sizeof(double);
  auto& mine = of_ranks_[memory_->workers().rank()].numbers;
  for (std::size_t i = 0; i < kNumbers; ++i) {
    const double before = i == kMemory ? 0 : mine[i].load(std::memory_order_relaxed);
    mine[i].store(before + numbers_of(done)[i], std::memory_order_release);
  }
}

std::vector<SharedBatches::Done> SharedBatches::done() const {
  std::vector<Done> all(static_cast<std::size_t>(memory_->workers().size()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    double* const to = numbers_of(all[rank]);
    for (std::size_t i = 0; i < kNumbers; ++i)
      to[i] = of_ranks_[rank].numbers[i].load(std::memory_order_acquire);
  }
  return all;
}

std::int64_t SharedBatches::add_finite(bool is_finite, std::int64_t step) {
  if (is_finite) {
    counter_->not_finite.store(0);
    return 0;
  }
  const std::int64_t count = counter_->not_finite.fetch_add(1) + 1;
  if (count == 1) {
    counter_->first_step.store(step);
    counter_->rank.store(memory_->workers().rank());
  }
  return count;
}

SharedBatches::NotFinite SharedBatches::not_finite() const {
  return {counter_->not_finite.load(), counter_->first_step.load(), counter_->rank.load()};
}

}  // namespace weft::strategy
