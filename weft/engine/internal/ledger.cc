// All ranks of a host write this memory at the same time, without a lock. Numbers of steps take the
// place of flags, so nothing is ever reset and no rank waits for a reset.
//
//   seat, tokens      plain; each written by one rank, before the stamp or meeting that shows it
//   stamps            one writer each: release store by stamp(), acquire load by behind()
//   chunks            any rank claims by compare-and-swap, so exactly one succeeds
//   completed         only grows; meet() compares the sum with due_, which all ranks count alike
//   squares, written  plain; in a step by the rank that claimed the chunk, before its complete()
//
// complete() is a release, and meet() reads it by an acquire. So after the meeting, each rank sees
// all sums, weights and squares of the phase.
//
// How far ranks drift apart: no rank leaves a meeting before all have entered it. So a peer may be
// one step ahead, while this rank has left the last meeting of its step and not begun the next one.
// Digests and companies are read there, so they exist for two steps. The other values of a seat are
// read before this rank enters the meeting, and exist once. Where units are marked as read,
// await_read() takes the place of the meeting.
#include "weft/engine/internal/ledger.h"

namespace weft::engine::internal {

struct alignas(128) Ledger::Seat {
  double weight;
  std::uint32_t digests[2];             // by step modulo 2, since a peer may be one step ahead
  std::uint64_t companies[2];           // by step modulo 2
  std::uint32_t not_finite;             // the last step with a gradient that was not finite
  std::uint32_t dropped;                // the last step whose gradients do not count
  std::atomic<std::int64_t> completed;  // number of chunks since the start
  std::atomic<std::uint32_t> met;       // the last phase that this rank has finished
  std::atomic<bool> left;
};

Ledger::Ledger(net::Host& host, const Sizes& sizes, std::chrono::nanoseconds timeout,
               const Crossing* crossing)
    : host_(host),
      rank_(host.rank()),
      world_(host.world()),
      sizes_(sizes),
      timeout_(timeout),
      crossing_(crossing) {
  const std::size_t world = index(world_), chunks = index(sizes.chunks);
  const auto share = [&](std::size_t bytes) {
    return bytes == 0 ? nullptr : host.share(bytes, timeout);
  };
  seats_ = share(world * sizeof(Seat));
  tokens_ = share(world * index(sizes.params + 8) * sizeof(Token));
  stamps_ = reinterpret_cast<std::atomic<std::uint32_t>*>(
      share(kKinds * world * stride() * sizeof(std::uint32_t)));
  chunks_ = reinterpret_cast<std::atomic<std::uint32_t>*>(share(chunks * sizeof(std::uint32_t)));
  squares_ = reinterpret_cast<double*>(share(chunks * sizeof(double)));
  written_ = reinterpret_cast<Written*>(share(chunks * sizeof(Written)));
}

Ledger::Seat& Ledger::seat(int rank) const { return reinterpret_cast<Seat*>(seats_)[rank]; }

Ledger::Token* Ledger::tokens(int rank) const {
  return reinterpret_cast<Token*>(tokens_) +
         static_cast<std::ptrdiff_t>(rank) * (sizes_.params + 8);
}

std::atomic<std::uint32_t>& Ledger::at(Kind kind, int rank, int unit) const {
  return stamps_[(kind * index(world_) + index(rank)) * stride() + index(unit)];
}

void Ledger::begin(double weight, std::uint32_t digest, std::uint64_t company) {
  ++step_;
  seat(rank_).weight = weight;
  seat(rank_).digests[step_ % 2] = digest;
  seat(rank_).companies[step_ % 2] = company;
}

std::vector<std::uint64_t> Ledger::companies() const {
  std::vector<std::uint64_t> all;
  for (int rank = 0; rank < world_; ++rank) all.push_back(seat(rank).companies[step_ % 2]);
  return all;
}

bool Ledger::alike() const {
  for (int rank = 1; rank < world_; ++rank) {
    if (seat(rank).digests[step_ % 2] != seat(0).digests[step_ % 2]) return false;
  }
  return true;
}

std::vector<double> Ledger::weights() const {
  std::vector<double> all;
  for (int rank = 0; rank < world_; ++rank) all.push_back(seat(rank).weight);
  return all;
}

void Ledger::mark_not_finite() { seat(rank_).not_finite = step_; }

void Ledger::mark_dropped() { seat(rank_).dropped = step_; }

int Ledger::first_not_dropped() const {
  for (int rank = 0; rank < world_; ++rank) {
    if (seat(rank).dropped != step_) return rank;
  }
  return -1;
}

bool Ledger::all_finite() const {
  for (int rank = 0; rank < world_; ++rank) {
    if (seat(rank).not_finite == step_) return false;
  }
  return true;
}

void Ledger::leave() noexcept {
  // Sequentially consistent, as is a peer's Touch with its look at `left`. So the peer sees that
  // this rank has left, or this rank sees the Touch and waits for its end.
  seat(rank_).left.store(true);
  host_.notify();
  host_.await_untouched();
}

bool Ledger::has_left(int rank) const { return seat(rank).left.load(); }

int Ledger::first_left() const {
  for (int rank = 0; rank < world_; ++rank) {
    if (has_left(rank)) return rank;
  }
  return -1;
}

void Ledger::check_left() const {
  const int rank = first_left();
  if (rank < 0) return;
  host_.fail_by(Error(Errc::kAborted,
                      "rank " + std::to_string(rank) +
                          " has ended its model before the end of a step that this rank waits for",
                      {"step", rank_, rank}));
}

void Ledger::stamp(Kind kind, int unit) {
  // Shows all plain writes of this rank before it.
  at(kind, rank_, unit).store(step_, std::memory_order_release);
  host_.notify();
}

int Ledger::behind(Kind kind, int unit) const {
  for (int rank = 0; rank < world_; ++rank) {
    // A peer may be a step ahead, so a larger number counts too. The difference survives an
    // overflow.
    if (static_cast<std::int32_t>(at(kind, rank, unit).load(std::memory_order_acquire) - step_) < 0)
      return rank;
  }
  return -1;
}

observe::Operation Ledger::position() const {
  constexpr observe::ShortName kName = "step";
  return {.name = kName, .group = host_.group_name(), .number = step_};
}

void Ledger::await(Kind kind, int unit) const {
  int rank = -1;
  wait([&] { return (rank = behind(kind, unit)) < 0; }, [&] { return rank; });
}

bool Ledger::claim(int chunk, int phase) {
  const std::uint32_t mine = stamp_of(phase);
  std::uint32_t seen = chunks_[chunk].load(std::memory_order_relaxed);
  return seen < mine &&
         chunks_[chunk].compare_exchange_strong(seen, mine, std::memory_order_acq_rel);
}

void Ledger::complete(std::int64_t count) {
  if (count > 0) seat(rank_).completed.fetch_add(count, std::memory_order_release);
}

void Ledger::meet(std::int64_t chunks, int phase) {
  due_ += chunks;
  const std::uint32_t mine = stamp_of(phase);
  seat(rank_).met.store(mine, std::memory_order_release);
  host_.notify();
  int rank = 0;
  wait(
      [&] {
        while (rank < world_ && seat(rank).met.load(std::memory_order_acquire) >= mine) ++rank;
        if (rank < world_) return false;
        std::int64_t completed = 0;
        for (int peer = 0; peer < world_; ++peer)
          completed += seat(peer).completed.load(std::memory_order_acquire);
        return completed >= due_;
      },
      [&] { return rank < world_ ? rank : -1; });
}

}  // namespace weft::engine::internal
