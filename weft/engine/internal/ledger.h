// What the ranks of a host tell each other about one step, in shared memory: whose gradient lies where, which pieces are done.
//
// A step is numbered. Each rank writes its gradients' tokens and then publishes buckets, one after the other; a chunk (a part of a bucket)
// whose bucket everybody has published may be claimed by any rank, once a step and phase; and at the end all ranks meet. A claim and its
// completion stand here with the step's number, so that survivors can tell which chunks a lost rank had begun.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "weft/net/memory/host.h"

namespace weft::parallel::internal {

class Ledger {
 public:
  using Token = net::Host::Token;

  // Collective. `chunks` may be at most this for all plans that are to come.
  Ledger(net::Host& host, int params, int buckets, int chunks, std::chrono::nanoseconds timeout);

  // Begins the next step (1, 2, …) on this rank. Its samples must be known before its first publish().
  void begin(double samples);
  std::uint32_t step() const { return step_; }
  double samples(int rank) const;

  void put(int param, Token token) { tokens(rank_)[param] = token; }
  Token token(int rank, int param) const { return tokens(rank)[param]; }
  void publish(int bucket);
  // True when all ranks have published the bucket in this step.
  bool published(int bucket) const;
  // The first rank that has not; for error messages.
  int missing(int bucket) const;

  // True for exactly one caller a step and phase (0 or 1).
  bool claim(int chunk, int phase);
  bool claimed(int chunk, int phase) const { return chunks_[chunk].load(std::memory_order_relaxed) >= stamp(phase); }
  // Tells that this rank has completed `count` chunks of the phase that it had claimed.
  void complete(std::int64_t count);
  // Returns when the ranks have completed `chunks` chunks in this phase, and all have called it.
  void meet(std::int64_t chunks, int phase, const char* operation);

  net::Host& host() const { return host_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  // A double a chunk, written by who claims it, read by all after the meeting.
  double* chunk_norms() const { return norms_; }

 private:
  struct Seat;
  Seat& seat(int rank) const;
  Token* tokens(int rank) const;
  std::atomic<std::uint32_t>& stamp_of(int rank, int bucket) const;
  std::uint32_t stamp(int phase) const { return 2 * step_ + static_cast<std::uint32_t>(phase); }
  // Buckets' stamps of one rank fill lines of their own.
  std::size_t bucket_stride() const { return (static_cast<std::size_t>(buckets_) + 31) / 32 * 32; }

  net::Host& host_;
  const int rank_, world_, params_, buckets_;
  const std::chrono::nanoseconds timeout_;
  std::uint32_t step_ = 0;
  std::int64_t due_ = 0;  // chunks that all ranks together have to have completed since the beginning
  std::byte* seats_ = nullptr;
  std::byte* tokens_ = nullptr;
  std::atomic<std::uint32_t>* stamps_ = nullptr;
  std::atomic<std::uint32_t>* chunks_ = nullptr;
  double* norms_ = nullptr;
};

}  // namespace weft::parallel::internal
