// What the ranks of a host tell each other about one step, in shared memory: whose gradient lies
// where, what is published, read, done.
//
// A step is numbered. Each rank writes its gradients' tokens and then publishes units, one after
// the other. What follows is one of two: each rank reads its shard of a unit and says so (read()),
// or a chunk (a part of a unit) that everybody has published is claimed by any rank, once a step
// and phase, and at the end all ranks meet. A claim and its completion stand here with the step's
// number, so that survivors can tell which chunks a lost rank had begun.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "weft/engine/internal/index.h"
#include "weft/net/memory/host.h"

namespace weft::parallel::internal {

class Ledger {
 public:
  using Token = net::Host::Token;
  struct Sizes {
    int params = 0, units = 0;
    int chunks = 0;  // at most, for all plans that are to come
  };

  // Collective.
  Ledger(net::Host& host, const Sizes& sizes, std::chrono::nanoseconds timeout);

  // Begins the next step (1, 2, …) on this rank. Its weight (samples) must be known before its
  // first publish().
  void begin(double weight);
  std::uint32_t step() const { return step_; }
  double weight(int rank) const;

  void put(int param, Token token) { tokens(rank_)[param] = token; }
  Token token(int rank, int param) const { return tokens(rank)[param]; }
  void publish(int unit) { stamp(kPublished, unit); }
  // The first rank that has not published the unit in this step, which error messages name; -1: all
  // have.
  int missing(int unit) const { return behind(kPublished, unit); }
  bool published(int unit) const { return missing(unit) < 0; }
  void await_published(int unit) const { await(kPublished, unit); }

  // This rank reads nobody's gradients of the unit any more.
  void read(int unit) { stamp(kRead, unit); }
  bool is_read(int unit) const { return behind(kRead, unit) < 0; }
  void await_read(int unit) const { await(kRead, unit); }

  // True for exactly one caller a step and phase (0 or 1). Who sees a chunk claimed sees what the
  // claimer saw published.
  bool claim(int chunk, int phase);
  bool claimed(int chunk, int phase) const {
    return chunks_[chunk].load(std::memory_order_acquire) >= stamp_of(phase);
  }
  // Tells that this rank has completed `count` chunks of the phase that it had claimed.
  void complete(std::int64_t count);
  // Returns when the ranks have completed `chunks` chunks in this phase, and all have called it.
  void meet(std::int64_t chunks, int phase);

  net::Host& host() const { return host_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  // A double a chunk, written by who claims it, read by all after the meeting.
  double* chunk_squares() const { return squares_; }

 private:
  struct Seat;
  enum Kind { kPublished, kRead, kKinds };
  Seat& seat(int rank) const;
  Token* tokens(int rank) const;
  std::atomic<std::uint32_t>& at(Kind kind, int rank, int unit) const;
  void stamp(Kind kind, int unit);
  int behind(Kind kind, int unit) const;
  void await(Kind kind, int unit) const;
  std::uint32_t stamp_of(int phase) const { return 2 * step_ + static_cast<std::uint32_t>(phase); }
  // Units' stamps of one rank fill lines of their own.
  std::size_t stride() const { return (index(sizes_.units) + 31) / 32 * 32; }

  net::Host& host_;
  const int rank_, world_;
  const Sizes sizes_;
  const std::chrono::nanoseconds timeout_;
  std::uint32_t step_ = 0;
  // Chunks that all ranks together have to have completed since the beginning.
  std::int64_t due_ = 0;
  std::byte *seats_ = nullptr, *tokens_ = nullptr;
  std::atomic<std::uint32_t>*stamps_ = nullptr, *chunks_ = nullptr;
  double* squares_ = nullptr;
};

}  // namespace weft::parallel::internal
