#include "weft/engine/internal/ledger.h"

namespace weft::parallel::internal {

struct alignas(128) Ledger::Seat {
  double samples;
  std::atomic<std::int64_t> completed;  // chunks, since the beginning
  std::atomic<std::uint32_t> met;       // the last phase that this rank has ended
};

Ledger::Ledger(net::Host& host, int params, int buckets, int chunks, std::chrono::nanoseconds timeout)
    : host_(host), rank_(host.rank()), world_(host.world()), params_(params), buckets_(buckets), timeout_(timeout) {
  const auto world = static_cast<std::size_t>(world_);
  seats_ = host.share(world * sizeof(Seat), timeout);
  tokens_ = host.share(world * static_cast<std::size_t>(params_ + 8) * sizeof(Token), timeout);
  stamps_ = reinterpret_cast<std::atomic<std::uint32_t>*>(host.share(world * bucket_stride() * sizeof(std::uint32_t), timeout));
  chunks_ = reinterpret_cast<std::atomic<std::uint32_t>*>(host.share(static_cast<std::size_t>(chunks) * sizeof(std::uint32_t), timeout));
  norms_ = reinterpret_cast<double*>(host.share(static_cast<std::size_t>(chunks) * sizeof(double), timeout));
}

Ledger::Seat& Ledger::seat(int rank) const { return reinterpret_cast<Seat*>(seats_)[rank]; }

Ledger::Token* Ledger::tokens(int rank) const {
  return reinterpret_cast<Token*>(tokens_) + static_cast<std::ptrdiff_t>(rank) * (params_ + 8);
}

std::atomic<std::uint32_t>& Ledger::stamp_of(int rank, int bucket) const {
  return stamps_[static_cast<std::size_t>(rank) * bucket_stride() + static_cast<std::size_t>(bucket)];
}

void Ledger::begin(double samples) {
  ++step_;
  seat(rank_).samples = samples;
}

double Ledger::samples(int rank) const { return seat(rank).samples; }

void Ledger::publish(int bucket) {
  stamp_of(rank_, bucket).store(step_, std::memory_order_release);
  host_.notify();
}

bool Ledger::published(int bucket) const { return missing(bucket) < 0; }

int Ledger::missing(int bucket) const {
  for (int rank = 0; rank < world_; ++rank) {
    if (static_cast<std::int32_t>(stamp_of(rank, bucket).load(std::memory_order_acquire) - step_) < 0) return rank;
  }
  return -1;
}

bool Ledger::claim(int chunk, int phase) {
  const std::uint32_t mine = stamp(phase);
  std::uint32_t seen = chunks_[chunk].load(std::memory_order_relaxed);
  return seen < mine && chunks_[chunk].compare_exchange_strong(seen, mine, std::memory_order_acq_rel);
}

void Ledger::complete(std::int64_t count) {
  if (count > 0) seat(rank_).completed.fetch_add(count, std::memory_order_release);
}

void Ledger::meet(std::int64_t chunks, int phase, const char* operation) {
  due_ += chunks;
  const std::uint32_t mine = stamp(phase);
  seat(rank_).met.store(mine, std::memory_order_release);
  host_.notify();
  int rank = 0;
  host_.wait(
      [&] {
        while (rank < world_ && seat(rank).met.load(std::memory_order_acquire) >= mine) ++rank;
        if (rank < world_) return false;
        std::int64_t completed = 0;
        for (int peer = 0; peer < world_; ++peer) completed += seat(peer).completed.load(std::memory_order_acquire);
        return completed >= due_;
      },
      [&] { return rank < world_ ? rank : -1; }, operation, timeout_);
}

}  // namespace weft::parallel::internal
