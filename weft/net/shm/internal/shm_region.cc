#include "weft/net/shm/internal/shm_region.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <string>

namespace weft::net::internal {
namespace {

// A ring as large as a second-level cache (1 MiB) has left it before it is written again. So on
// cores that share no such cache, a write does not have to take its lines back from the reader's.
constexpr std::size_t kDefaultRing = std::size_t{1} << 20;
constexpr std::size_t kSmallestRing = 4096;
constexpr std::size_t kSmallestDefaultRing = std::size_t{8} << 10;
constexpr std::size_t kAllRings = std::size_t{32} << 20;
constexpr int kMaxWorld = 256;

// Slots take an eighth of the stream's memory. Their number limits the small messages that can be
// pending without a receive.
std::size_t num_slots(std::size_t ring_bytes) {
  return std::clamp<std::size_t>(ring_bytes / 1024, 8, 1024);
}

}  // namespace

std::size_t ShmRegion::ring_bytes(int world, std::size_t wanted) {
  WEFT_REQUIRE(world >= 1 && world <= kMaxWorld,
               "shared memory supports 1 to 256 ranks, not " + std::to_string(world));
  if (wanted != 0) {
    WEFT_REQUIRE(
        std::has_single_bit(wanted) && wanted >= kSmallestRing && wanted <= std::size_t{1} << 30,
        "ring_bytes must be a power of two from 4096 to 2^30, not " + std::to_string(wanted));
    return wanted;
  }
  const auto pairs = static_cast<std::size_t>(std::max(1, world * (world - 1)));
  return std::clamp(std::bit_floor(kAllRings / pairs), kSmallestDefaultRing, kDefaultRing);
}

std::size_t ShmRegion::bytes(int world, std::size_t wanted) {
  const std::size_t ring = ring_bytes(world, wanted);
  const auto ranks = static_cast<std::size_t>(world);
  return alignof(Control) + sizeof(Control) + ranks * sizeof(Seat) +
         ranks * ranks * sizeof(RingIndices) +
         ranks * (ranks - 1) * (num_slots(ring) * sizeof(RingSlot) + ring);
}

ShmRegion::ShmRegion(std::span<std::byte> memory, int world, std::size_t wanted)
    : world_(world), ring_bytes_(ring_bytes(world, wanted)) {
  WEFT_REQUIRE(memory.size() >= bytes(world, wanted),
               "the shared region has " + std::to_string(memory.size()) + " bytes; " +
                   std::to_string(world) + " ranks need " + std::to_string(bytes(world, wanted)));
  const auto ranks = static_cast<std::size_t>(world);
  // All mappings have the same remainder modulo 128, so the offset of Control is the same in all.
  const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(Control);
  control_ = reinterpret_cast<Control*>(memory.data() +
                                        (misaligned == 0 ? 0 : alignof(Control) - misaligned));
  seats_ = reinterpret_cast<Seat*>(control_ + 1);
  indices_ = reinterpret_cast<RingIndices*>(seats_ + ranks);
  slots_ = reinterpret_cast<RingSlot*>(indices_ + ranks * ranks);
  streams_ = reinterpret_cast<std::byte*>(slots_ + ranks * (ranks - 1) * num_slots(ring_bytes_));
}

RingView ShmRegion::ring(int from, int to) const {
  const auto row = static_cast<std::size_t>(from) * static_cast<std::size_t>(world_ - 1);
  const std::size_t pair = row + static_cast<std::size_t>(to < from ? to : to - 1);
  const std::size_t count = num_slots(ring_bytes_);
  return {indices_ + from * world_ + to,
          slots_ + pair * count,
          streams_ + pair * ring_bytes_,
          count,
          ring_bytes_,
          0,
          -1};
}

void ShmRegion::sit_down(int rank) noexcept {
  Seat& mine = seat(rank);
  if (sched_getaffinity(0, sizeof mine.processors, &mine.processors) != 0)
    CPU_ZERO(&mine.processors);
  mine.seated.store(1);
}

ShmRegion::Crowd ShmRegion::crowd() const noexcept {
  Crowd crowd{true, true};
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < world_; ++rank) {
    if (seat(rank).seated.load() == 0) {
      crowd.everybody = false;
    } else {
      CPU_OR(&all, &all, &seat(rank).processors);
    }
  }
  crowd.oversubscribed = world_ > CPU_COUNT(&all);
  return crowd;
}

void ShmRegion::wake(int rank) noexcept {
  Seat& sleeper = seat(rank);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeper.sleepers.load(std::memory_order_relaxed) == 0) return;
  sleeper.doorbell.fetch_add(1);
  syscall(SYS_futex, &sleeper.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t ShmRegion::begin_sleep(int rank) noexcept {
  seat(rank).sleepers.fetch_add(1);
  return seat(rank).doorbell.load();
}

void ShmRegion::sleep(int rank, std::uint32_t ticket, std::chrono::nanoseconds limit) noexcept {
  const timespec time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  syscall(SYS_futex, &seat(rank).doorbell, FUTEX_WAIT, ticket, &time, nullptr, 0);
}

void ShmRegion::end_sleep(int rank) noexcept { seat(rank).sleepers.fetch_sub(1); }

void ShmRegion::publish_failure(const Error& error, int rank) noexcept {
  std::uint32_t none = 0;
  if (!control_->failure_state.compare_exchange_strong(none, 1)) return;
  control_->failure_code = static_cast<std::int32_t>(error.code());
  control_->failure_rank = rank;
  control_->failure_peer = error.context().peer;
  std::strncpy(control_->failure_text, error.message().c_str(), sizeof control_->failure_text - 1);
  control_->failure_state.store(2);
  for (int other = 0; other < world_; ++other) wake(other);
}

std::optional<Error> ShmRegion::failure() const {
  if (!failed()) return std::nullopt;
  const std::string text(control_->failure_text,
                         strnlen(control_->failure_text, sizeof control_->failure_text));
  const bool lost = control_->failure_code == static_cast<std::int32_t>(Errc::kPeerLost);
  return Error(lost ? Errc::kPeerLost : Errc::kAborted, text,
               {"", control_->failure_rank, control_->failure_peer});
}

}  // namespace weft::net::internal
