#include "weft/strategy/shared_batches.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "weft/base/error.h"
#include "weft/comm/texts.h"
#include "weft/store/client.h"
#include "weft/strategy/internal/batch_numbers.h"
#include "weft/strategy/internal/shared_memory.h"
#include "weft/strategy/internal/store_batches.h"

namespace weft::strategy {

using internal::kDoneNumbers;
using internal::numbers_of;

namespace {

// Both numbers in one word, so that no number is given out beyond an end that has just changed.
struct Range {
  std::uint32_t next = 0, end = 0;
};

std::uint64_t pack(Range range) { return std::uint64_t{range.end} << 32 | range.next; }
Range unpack(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
}

// Draws of a worker that its ranks may be apart. They meet within each step, and a batch is drawn
// ahead.
constexpr std::uint32_t kDraws = 64;
constexpr std::uint32_t kNone = UINT32_MAX;

// In the memory of a host.
class HostBatches final : public SharedBatches {
 public:
  HostBatches(const Group& ranks, const WorkerRank& place);

  int workers() const override { return place_.workers; }
  void begin(std::int64_t count) override;
  std::optional<std::int64_t> take() override;
  void close() override;
  std::int64_t end() const override { return unpack(counter_->range.load()).end; }
  void meet() override { memory_.workers().barrier(); }
  void add(const Done& done) override;
  std::vector<Done> done() const override;
  std::int64_t add_finite(bool is_finite, std::int64_t step) override;
  NotFinite not_finite() const override {
    return {counter_->not_finite.load(), counter_->first_step.load(), counter_->rank.load()};
  }

 private:
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> range;
    alignas(64) std::atomic<std::int64_t> not_finite;
    std::atomic<std::int64_t> first_step;
    std::atomic<std::int32_t> rank;
  };
  // Only its rank writes it.
  struct alignas(64) OfRank {
    std::array<std::atomic<double>, kDoneNumbers> numbers;
  };
  // (number of the draw + 1) << 32 | what was drawn.
  struct alignas(64) Draws {
    std::array<std::atomic<std::uint64_t>, kDraws> drawn;
  };

  std::uint32_t draw();

  const WorkerRank place_;
  const internal::SharedMemory memory_;
  Counter* counter_ = nullptr;
  OfRank* of_ranks_ = nullptr;  // by rank
  Draws* draws_ = nullptr;      // by worker
  std::uint32_t taken_ = 0;     // calls of take() since begin()
  bool ended_ = false;          // none was left
};

HostBatches::HostBatches(const Group& ranks, const WorkerRank& place)
    : place_(place),
      memory_(ranks, sizeof(Counter) + sizeof(OfRank) * static_cast<std::size_t>(ranks.size()) +
                         sizeof(Draws) * static_cast<std::size_t>(place.workers)) {
  std::byte* at = memory_.data();
  counter_ = reinterpret_cast<Counter*>(at);
  of_ranks_ = reinterpret_cast<OfRank*>(at + sizeof(Counter));
  draws_ = reinterpret_cast<Draws*>(at + sizeof(Counter) +
                                    sizeof(OfRank) * static_cast<std::size_t>(ranks.size()));
}

void HostBatches::begin(std::int64_t count) {
  internal::check_count(count);
  memory_.workers().barrier();
  if (place_.is_first) {
    for (auto& draw : draws_[place_.worker].drawn) draw.store(0, std::memory_order_relaxed);
  }
  taken_ = 0;
  ended_ = false;
  if (memory_.workers().rank() == 0)
    counter_->range.store(pack({0, static_cast<std::uint32_t>(count)}));
  memory_.workers().barrier();
}

std::uint32_t HostBatches::draw() {
  std::uint64_t word = counter_->range.load();
  for (Range range = unpack(word); range.next < range.end; range = unpack(word)) {
    if (counter_->range.compare_exchange_weak(word, pack({range.next + 1, range.end})))
      return range.next;
  }
  return kNone;
}

std::optional<std::int64_t> HostBatches::take() {
  if (ended_) return std::nullopt;  // the first rank may draw no more
  const std::uint64_t tag = (std::uint64_t{taken_} + 1) << 32;
  std::atomic<std::uint64_t>& drawn = draws_[place_.worker].drawn[taken_ % kDraws];
  if (place_.is_first) {
    drawn.store(tag | draw(), std::memory_order_release);
    memory_.notify();
  }
  std::uint64_t word = 0;
  memory_.wait(
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

void HostBatches::close() {
  std::uint64_t word = counter_->range.load();
  for (;;) {
    const Range range = unpack(word);
    const auto whole = static_cast<std::uint32_t>(internal::whole_batches(range.next, workers()));
    if (whole >= range.end) return;
    if (counter_->range.compare_exchange_weak(word, pack({range.next, whole}))) return;
  }
}

void HostBatches::add(const Done& done) {
  constexpr std::size_t kMemory = offsetof(Done, memory_bytes) / sizeof(double);
  auto& mine = of_ranks_[memory_.workers().rank()].numbers;
  for (std::size_t i = 0; i < kDoneNumbers; ++i) {
    const double before = i == kMemory ? 0 : mine[i].load(std::memory_order_relaxed);
    mine[i].store(before + numbers_of(done)[i], std::memory_order_release);
  }
}

std::vector<SharedBatches::Done> HostBatches::done() const {
  std::vector<Done> all(static_cast<std::size_t>(memory_.workers().size()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    double* const to = numbers_of(all[rank]);
    for (std::size_t i = 0; i < kDoneNumbers; ++i)
      to[i] = of_ranks_[rank].numbers[i].load(std::memory_order_acquire);
  }
  return all;
}

std::int64_t HostBatches::add_finite(bool is_finite, std::int64_t step) {
  if (is_finite) {
    counter_->not_finite.store(0);
    return 0;
  }
  const std::int64_t count = counter_->not_finite.fetch_add(1) + 1;
  if (count == 1) {
    counter_->first_step.store(step);
    counter_->rank.store(memory_.workers().rank());
  }
  return count;
}

// The store that the launcher has given to this process; null if it has given none.
std::shared_ptr<store::Store> store_of_job() {
  const auto socket = store::Client::environment();
  return socket ? std::make_shared<store::Client>(*socket) : nullptr;
}

}  // namespace

SharedBatches::Done& SharedBatches::Done::operator+=(const Done& other) {
  for (std::size_t i = 0; i < kDoneNumbers; ++i) numbers_of(*this)[i] += numbers_of(other)[i];
  return *this;
}

SharedBatches::Done& SharedBatches::Done::operator-=(const Done& other) {
  for (std::size_t i = 0; i < kDoneNumbers; ++i) numbers_of(*this)[i] -= numbers_of(other)[i];
  return *this;
}

std::unique_ptr<SharedBatches> make_shared_batches(const Group& ranks, const WorkerRank& place,
                                                   const SharedBatchesOptions& options) {
  if (ranks.size() == 1 || ranks.host() != nullptr)
    return std::make_unique<HostBatches>(ranks, place);
  auto store = options.store ? options.store : store_of_job();
  if (!comm::holds_on_all(ranks, store != nullptr)) return nullptr;
  return internal::store_batches(ranks, place, options.most_at_a_time, std::move(store));
}

}  // namespace weft::strategy
