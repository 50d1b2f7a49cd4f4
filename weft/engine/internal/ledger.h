// Shared-memory bookkeeping of a step among the ranks of a host: the locations of gradients, and
// which units are published, read and done.
//
// Steps are numbered. Each rank writes the tokens of its gradients and then publishes units one
// after the other. There are two ways to continue. Either each rank reads its shard of a unit and
// marks it as read (read()). Or any rank claims a chunk (a part of a unit) that all ranks have
// published, once per step and phase; at the end all ranks meet. Claims have the number of the
// step, so that they need not be reset.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "weft/engine/internal/crossing.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/written.h"
#include "weft/net/memory/host.h"
#include "weft/observe/position/position.h"

namespace weft::engine::internal {

class Ledger {
 public:
  using Token = net::Host::Token;
  struct Sizes {
    int params = 0, units = 0;
    int chunks = 0;  // most chunks of any later assignment
  };

  // Collective. `crossing` may be null, and outlives it.
  Ledger(net::Host& host, const Sizes& sizes, std::chrono::nanoseconds timeout,
         const Crossing* crossing = nullptr);

  // Begins the next step (1, 2, …) on this rank. Its weight (samples), the digest of changes of
  // its module, and which other models its backward passes have reached (company.h), must be known
  // before its first publish().
  void begin(double weight, std::uint32_t digest = 0, std::uint64_t company = 0);
  std::uint32_t step() const { return step_; }
  // By rank. Valid once all ranks have published a unit.
  std::vector<double> weights() const;
  // True if all ranks have the same digest. Valid then too.
  bool alike() const;
  // Of all ranks, by rank. Valid then too.
  std::vector<std::uint64_t> companies() const;
  // This rank has a gradient that is not finite in this step. Called before the last publish().
  void mark_not_finite();
  // This rank's gradients of this step do not count. Called before the last publish().
  void mark_dropped();
  // The first rank that has not called it; -1: none. Valid once all ranks have published all of
  // their units, until they meet.
  int first_not_dropped() const;
  // False if a rank has one that is not finite. Valid once all ranks have published all of their
  // units.
  bool all_finite() const;

  void put(int param, Token token) { tokens(rank_)[param] = token; }
  Token token(int rank, int param) const { return tokens(rank)[param]; }
  void publish(int unit) { stamp(kPublished, unit); }
  // Returns the first rank that has not published the unit in this step, for error messages; -1:
  // all have.
  int missing(int unit) const { return behind(kPublished, unit); }
  bool published(int unit) const { return missing(unit) < 0; }
  void await_published(int unit) const { await(kPublished, unit); }

  // This rank ends its model in the middle of a step. Afterwards no peer reads or writes its
  // gradients, and waits for it are errors.
  void leave() noexcept;
  // The first rank that has left; -1: none.
  int first_left() const;
  // Throws Error(kAborted), and ends the group, if a rank has left.
  void check_left() const;
  // Calls `body`, which reads memory of peers, if none of them has left. Throws else.
  template <class Body>
  void read_peers(const Body& body) const {
    {
      const net::Host::Touch touch(host_, "step");
      if (first_left() < 0) return body();
    }
    check_left();  // waits for all touches, this one among them
  }

  // Marks that this rank has finished reading the gradients of the unit.
  void read(int unit) { stamp(kRead, unit); }
  bool is_read(int unit) const { return behind(kRead, unit) < 0; }
  void await_read(int unit) const { await(kRead, unit); }

  // Returns true for exactly one caller per step and phase (0 or 1). A rank that sees a chunk
  // claimed also sees the units that the claiming rank saw published.
  bool claim(int chunk, int phase);
  bool claimed(int chunk, int phase) const {
    return chunks_[chunk].load(std::memory_order_acquire) >= stamp_of(phase);
  }
  // Marks `count` chunks that this rank had claimed in the phase as completed.
  void complete(std::int64_t count);
  // Returns when the ranks have completed `chunks` chunks of this phase and all ranks have called
  // it.
  void meet(std::int64_t chunks, int phase);

  // Host::wait() as a part of this step, which this rank's position names. Also throws as
  // Crossing::check().
  template <class Ready, class Suspect>
  void wait(Ready&& ready, Suspect&& suspect) const {
    const observe::OperationScope here(position());
    const auto look = [&] {
      const int peer = suspect();
      const auto still_waits = [&] { return !ready() && suspect() == peer; };
      if (crossing_ != nullptr) crossing_->check(peer, still_waits);
      if (peer >= 0 && has_left(peer) && still_waits()) check_left();
      return peer;
    };
    host_.wait(ready, look, "step", timeout_);
  }

  net::Host& host() const { return host_; }
  // One double per chunk, written by the rank that claims it and read by all after the meeting.
  double* chunk_squares() const { return squares_; }
  // Of each chunk's weights, read and written by the rank that claims it.
  Written& written(int chunk) const { return written_[chunk]; }

 private:
  struct Seat;
  bool has_left(int rank) const;
  enum Kind { kPublished, kRead, kKinds };
  Seat& seat(int rank) const;
  Token* tokens(int rank) const;
  std::atomic<std::uint32_t>& at(Kind kind, int rank, int unit) const;
  void stamp(Kind kind, int unit);
  int behind(Kind kind, int unit) const;
  observe::Operation position() const;
  void await(Kind kind, int unit) const;
  std::uint32_t stamp_of(int phase) const { return 2 * step_ + static_cast<std::uint32_t>(phase); }
  // The unit stamps of each rank have their own cache lines.
  std::size_t stride() const { return (index(sizes_.units) + 31) / 32 * 32; }

  net::Host& host_;
  const int rank_, world_;
  const Sizes sizes_;
  const std::chrono::nanoseconds timeout_;
  const Crossing* const crossing_;
  std::uint32_t step_ = 0;
  // Number of chunks that all ranks together must have completed since the start.
  std::int64_t due_ = 0;
  std::byte *seats_ = nullptr, *tokens_ = nullptr;
  std::atomic<std::uint32_t>*stamps_ = nullptr, *chunks_ = nullptr;
  double* squares_ = nullptr;
  Written* written_ = nullptr;
};

}  // namespace weft::engine::internal
