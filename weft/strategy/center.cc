#include "weft/strategy/center.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "weft/base/error.h"
#include "weft/strategy/internal/shared_memory.h"

namespace weft::strategy {
namespace {

using internal::SharedMemory;

constexpr std::int64_t kChunk = 8192;  // elements: 32 KiB of float32, which a cache holds

class SharedCenter final : public Center {
 public:
  SharedCenter(const Group& workers, const at::Tensor& like)
      : chunks_((like.numel() + kChunk - 1) / kChunk),
        memory_(workers, sizeof(Clocks) * static_cast<std::size_t>(workers.size()) +
                             sizeof(SharedMemory::Lock) * static_cast<std::size_t>(chunks_) +
                             like.nbytes()) {
    std::byte* at = memory_.data();
    clocks_ = reinterpret_cast<Clocks*>(at);
    at += sizeof(Clocks) * static_cast<std::size_t>(workers.size());
    locks_ = reinterpret_cast<SharedMemory::Lock*>(at);
    at += sizeof(SharedMemory::Lock) * static_cast<std::size_t>(chunks_);
    values_ = at::from_blob(at, {like.numel()}, like.options());
  }

  std::int64_t count() const override { return values_.numel(); }

  void pull(std::int64_t offset, const at::Tensor& out) override {
    for_each_chunk(offset, out,
                   [](const at::Tensor& mine, const at::Tensor& all) { mine.copy_(all); });
  }
  void add(std::int64_t offset, const at::Tensor& change) override {
    for_each_chunk(offset, change,
                   [](const at::Tensor& mine, const at::Tensor& all) { all.add_(mine); });
  }

  void advance(Clock clock, std::int64_t exchange) override {
    if (clock == Clock::kAdded) clocks_[me()].additions.fetch_add(1, std::memory_order_release);
    of(me(), clock).store(exchange, std::memory_order_release);
    memory_.notify();
  }
  std::int64_t additions() const override {
    std::int64_t sum = 0;
    for (int worker = 0; worker < size(); ++worker)
      sum += clocks_[worker].additions.load(std::memory_order_acquire);
    return sum;
  }
  void wait_for_all(Clock clock, std::int64_t least) override {
    wait_while(
        [&](int worker) { return of(worker, clock).load(std::memory_order_acquire) < least; });
  }
  void wait_for_exchanges(std::int64_t last) override {
    wait_while([&](int worker) {
      const std::int64_t added = clocks_[worker].added.load(std::memory_order_acquire),
                         pulled = clocks_[worker].pulled.load(std::memory_order_acquire);
      return added != pulled && std::max(added, pulled) <= last;
    });
  }
  void leave() override {
    clocks_[me()].left.store(1, std::memory_order_release);
    memory_.notify();
  }
  void reset(const at::Tensor* values) override {
    meet();
    if (values != nullptr && me() == 0) values_.copy_(*values);
    Clocks& mine = clocks_[me()];
    for (auto* number : {&mine.added, &mine.pulled, &mine.additions, &mine.left}) number->store(0);
    meet();
  }
  at::Tensor snapshot() override {
    meet();
    at::Tensor copy = values_.clone();
    meet();
    return copy;
  }
  at::Tensor in_place() override { return values_; }

 private:
  struct alignas(64) Clocks {
    std::atomic<std::int64_t> added, pulled, additions, left;
  };

  int me() const { return memory_.workers().rank(); }
  int size() const { return memory_.workers().size(); }
  void meet() const { memory_.workers().barrier(); }
  std::atomic<std::int64_t>& of(int worker, Clock clock) const {
    return clock == Clock::kAdded ? clocks_[worker].added : clocks_[worker].pulled;
  }

  // `keeps_waiting(worker)`: whether this worker holds the others.
  template <class KeepsWaiting>
  void wait_while(const KeepsWaiting& keeps_waiting) {
    int awaited = -1;
    const auto ready = [&] {
      for (awaited = 0; awaited < size(); ++awaited) {
        const bool left = clocks_[awaited].left.load(std::memory_order_acquire) != 0;
        if (!left && keeps_waiting(awaited)) return false;
      }
      return true;
    };
    memory_.wait(
        ready, [&] { return awaited; }, "wait for the slowest worker");
  }

  template <class Change>
  void for_each_chunk(std::int64_t offset, const at::Tensor& vector, const Change& change) {
    WEFT_REQUIRE(offset >= 0 && vector.dim() == 1 && vector.numel() <= count() - offset,
                 "elements outside the center's " + std::to_string(count()));
    if (vector.numel() == 0) return;
    const std::int64_t first = offset / kChunk, end = offset + vector.numel(),
                       several = (end - 1) / kChunk - first + 1, start = several * me() / size();
    for (std::int64_t i = 0; i < several; ++i) {
      const std::int64_t chunk = first + (start + i) % several,
                         from = std::max(offset, chunk * kChunk),
                         to = std::min(end, (chunk + 1) * kChunk);
      const SharedMemory::Hold hold(memory_, locks_[chunk]);
      change(vector.narrow(0, from - offset, to - from), values_.narrow(0, from, to - from));
    }
    memory_.notify();
    memory_.count_moved(vector.nbytes());
  }

  const std::int64_t chunks_;
  const SharedMemory memory_;
  Clocks* clocks_ = nullptr;             // by worker
  SharedMemory::Lock* locks_ = nullptr;  // by chunk
  at::Tensor values_;
};

}  // namespace

std::unique_ptr<Center> shared_center(const Group& workers, const at::Tensor& like) {
  return std::make_unique<SharedCenter>(workers, like);
}

}  // namespace weft::strategy
