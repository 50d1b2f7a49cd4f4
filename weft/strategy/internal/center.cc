#include "weft/strategy/internal/center.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "weft/base/error.h"
#include "weft/net/memory/host.h"

namespace weft::strategy::internal {
namespace {

constexpr std::int64_t kChunk = 8192;  // elements: 32 KiB of float32, which a cache holds
constexpr std::size_t kLine = 64;      // bytes

}  // namespace

struct alignas(kLine) Center::Clock {
  std::atomic<std::int64_t> pushes, reads;
};
struct alignas(kLine) Center::Lock {
  std::atomic<std::int32_t> holder;  // the worker's number + 1; 0: free
};

Center::Center(Group workers, const at::Tensor& like, std::int64_t staleness)
    : workers_(std::move(workers)), staleness_(staleness) {
  net::Host* const host = workers_.host();
  if (host == nullptr && workers_.size() > 1) {
    throw Error(Errc::kBadConfig,
                "this strategy keeps a center in the memory of a host, and the workers are not on "
                "one host, or cannot share memory; use easgd, local_sgd, diloco or gossip");
  }
  const auto count = like.numel();
  const auto locks = static_cast<std::size_t>((count + kChunk - 1) / kChunk);
  const auto clocks = static_cast<std::size_t>(workers_.size());
  const std::size_t before = sizeof(Clock) * clocks + sizeof(Lock) * locks;
  const std::size_t bytes = before + like.nbytes();
  std::byte* block = nullptr;
  if (workers_.size() == 1) {
    block_ = at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
    block = static_cast<std::byte*>(block_.mutable_data_ptr());
  } else {
    block = host->share(bytes, workers_.timeout());
  }
  clocks_ = reinterpret_cast<Clock*>(block);
  locks_ = reinterpret_cast<Lock*>(block + sizeof(Clock) * clocks);
  values_ = at::from_blob(block + before, {count}, like.options());
}

std::int64_t Center::chunks() const { return (values_.numel() + kChunk - 1) / kChunk; }

void Center::lock(Lock& lock) {
  const std::int32_t mine = workers_.rank() + 1;
  const auto taken = [&] {
    std::int32_t free = 0;
    return lock.holder.compare_exchange_strong(free, mine, std::memory_order_acquire);
  };
  if (taken()) return;
  const auto suspect = [&] { return lock.holder.load(std::memory_order_relaxed) - 1; };
  workers_.host()->wait(taken, suspect, "exchange with the center", workers_.timeout());
}

void Center::notify() const {
  if (workers_.size() > 1) workers_.host()->notify();
}

void Center::for_each_chunk(const at::Tensor& vector, const Change& change) {
  const std::int64_t all = chunks(), first = all * workers_.rank() / workers_.size();
  for (std::int64_t i = 0; i < all; ++i) {
    const std::int64_t chunk = (first + i) % all, begin = chunk * kChunk;
    const std::int64_t length = std::min(kChunk, values_.numel() - begin);
    lock(locks_[chunk]);
    change(vector.narrow(0, begin, length), values_.narrow(0, begin, length));
    locks_[chunk].holder.store(0, std::memory_order_release);
  }
  notify();
}

void Center::exchange(const at::Tensor& vector, const Change& change, const Change& read) {
  if (staleness_ < 0) return for_each_chunk(vector, change);
  wait_for_all(&Clock::reads);
  for_each_chunk(vector, change);
  advance(&Clock::pushes);
  wait_for_all(&Clock::pushes);
  if (read) for_each_chunk(vector, read);
  advance(&Clock::reads);
}

// Until no worker's count is more than the bound behind this one's pushes.
void Center::wait_for_all(Count count) {
  const std::int64_t mine = clocks_[workers_.rank()].pushes.load(std::memory_order_relaxed);
  int behind = -1;
  const auto ready = [&] {
    for (int worker = 0; worker < workers_.size(); ++worker) {
      if ((clocks_[worker].*count).load(std::memory_order_acquire) >= mine - staleness_) continue;
      behind = worker;
      return false;
    }
    return true;
  };
  if (ready()) return;
  workers_.host()->wait(
      ready, [&] { return behind; }, "wait for the slowest worker", workers_.timeout());
}

void Center::advance(Count count) {
  (clocks_[workers_.rank()].*count).fetch_add(1, std::memory_order_release);
  notify();
}

void Center::reset_clocks() {
  meet();
  clocks_[workers_.rank()].pushes.store(0);
  clocks_[workers_.rank()].reads.store(0);
  meet();
}

}  // namespace weft::strategy::internal
