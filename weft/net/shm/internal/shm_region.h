// What the ranks of a shared-memory group have in common: the first failure, a seat for each rank
// to sleep on, and the rings.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <span>

#include "weft/net/shm/internal/ring.h"

namespace weft::net::internal {

class ShmRegion {
 public:
  ShmRegion(std::span<std::byte> memory, int world, std::size_t ring_bytes);

  // Throws Error(kInvalidArgument) for a world or a ring size that cannot be. ring_bytes 0: the
  // default for the world.
  static std::size_t bytes(int world, std::size_t ring_bytes);
  static std::size_t ring_bytes(int world, std::size_t wanted);

  RingView ring(int from, int to) const;

  // Says where the calling rank may run.
  void sit_down(int rank) noexcept;
  // Whether ranks outnumber the processors on which those may run that have sat down; ranks that
  // are each bound to one have as many as there are of them.
  struct Crowd {
    bool oversubscribed = true;
    bool everybody = false;  // has sat down
  };
  Crowd crowd() const noexcept;

  // Wakes the threads of `rank` that sleep: those that began before they could see what the caller
  // has written.
  void wake(int rank) noexcept;
  // To sleep: begin; look once more for what is waited for; sleep, unless it is there; end.
  std::uint32_t begin_sleep(int rank) noexcept;
  void sleep(int rank, std::uint32_t ticket, std::chrono::nanoseconds limit) noexcept;
  void end_sleep(int rank) noexcept;

  void leave(int rank) noexcept { seat(rank).left.store(1); }
  bool left(int rank) const noexcept { return seat(rank).left.load() != 0; }

  // The first call of any rank wins.
  void publish_failure(const Error& error, int rank) noexcept;
  bool failed() const noexcept {
    return control_->failure_state.load(std::memory_order_acquire) == 2;
  }
  std::optional<Error> failure() const;

 private:
  struct Seat {
    alignas(128) std::atomic<std::uint32_t> doorbell;
    std::atomic<std::uint32_t> sleepers;
    std::atomic<std::uint32_t> left;
    std::atomic<std::uint32_t> seated;
    cpu_set_t processors;  // valid once seated
  };
  struct Control {
    // 0 none, 1 being written (for ever where its writer died: each rank then finds that loss by
    // itself), 2 there.
    alignas(128) std::atomic<std::uint32_t> failure_state;
    std::int32_t failure_code;
    std::int32_t failure_rank;
    std::int32_t failure_peer;
    char failure_text[496];
  };
  Seat& seat(int rank) const noexcept { return seats_[rank]; }

  int world_;
  std::size_t ring_bytes_;
  Control* control_;
  Seat* seats_;
  RingIndices* indices_;
  RingSlot* slots_;
  std::byte* streams_;
};

}  // namespace weft::net::internal
