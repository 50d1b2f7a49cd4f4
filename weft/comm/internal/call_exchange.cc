#include "weft/comm/internal/call_exchange.h"

#include <atomic>
#include <cstring>

namespace weft::comm::internal {

// Each rank has two slots and uses them in turn. It overwrites a slot only after the meeting in
// between, when all ranks have read the slot.
struct alignas(64) CallExchange::Slot {
  std::atomic<std::uint32_t> sequence;
  Note note;
  alignas(64) std::byte data[kInline];
};

CallExchange::CallExchange(net::Host& host, std::chrono::nanoseconds timeout)
    : host_(host),
      slots_(host.share(sizeof(Slot) * 2 * static_cast<std::size_t>(host.world()), timeout)) {}

CallExchange::Slot& CallExchange::slot(int rank) const {
  return reinterpret_cast<Slot*>(slots_)[2 * static_cast<std::size_t>(rank) + (sequence_ & 1)];
}

const CallExchange::Note& CallExchange::note(int peer) const { return slot(peer).note; }
const std::byte* CallExchange::data(int peer) const { return slot(peer).data; }

void CallExchange::show(const Note& note, const void* data, std::size_t bytes,
                        const char* operation, std::chrono::nanoseconds timeout) {
  host_.check(operation);
  ++sequence_;
  Slot& mine = slot(host_.rank());
  mine.note = note;
  if (bytes > 0) std::memcpy(mine.data, data, bytes);
  --sequence_;
  meet(operation, timeout);
}

void CallExchange::meet(const char* operation, std::chrono::nanoseconds timeout) {
  ++sequence_;
  slot(host_.rank()).sequence.store(sequence_, std::memory_order_release);
  host_.notify();
  int peer = 0;
  host_.wait(
      [&] {
        while (peer < host_.world() &&
               static_cast<std::int32_t>(slot(peer).sequence.load(std::memory_order_acquire) -
                                         sequence_) >= 0)
          ++peer;
        return peer == host_.world();
      },
      [&] { return peer; }, operation, timeout);
}

}  // namespace weft::comm::internal
