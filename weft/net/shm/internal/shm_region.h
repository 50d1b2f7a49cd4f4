// Shared state of a shared-memory group: the first failure, a seat on which each rank sleeps, and
// the rings.
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

  // Throws Error(kInvalidArgument) for an invalid number of ranks or ring size. ring_bytes 0: the
  // default for this number of ranks.
  static std::size_t bytes(int world, std::size_t ring_bytes);
  static std::size_t ring_bytes(int world, std::size_t wanted);

  RingView ring(int from, int to) const;

  // Publishes the processors on which the calling rank may run.
  void sit_down(int rank) noexcept;
  // Whether there are more ranks than processors, counted over the ranks that have published their
  // processors. If each rank is bound to its own processor, there are enough.
  struct Crowd {
    bool oversubscribed = true;
    bool everybody = false;  // all ranks have published their processors
  };
  Crowd crowd() const noexcept;

  // Wakes the threads of `rank` that began to sleep before they could see the caller's writes.
  void wake(int rank) noexcept;
  // To sleep: call begin_sleep(), check the condition once more, call sleep() if it does not hold,
  // and call end_sleep().
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
    cpu_set_t processors;  // valid once published
  };
  struct Control {
    // 0 none, 1 being written (stays 1 if the writer died; each rank then detects that loss
    // itself), 2 valid.
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
