// A ring of messages in shared memory: one process writes, another reads. Each process checks the
// indices and headers that the other one writes.
//
//   slots    │ stamp, header, ≤ 96 bytes │ stamp, header │ …
//   stream   │ pieces of longer messages, in the slots' order │
//
// The writer stores a slot's stamp last. The reader waits on the stamp of the next slot. So a small
// message costs one cache line, and no index is read while there is room.
//
// A stamp combines the slot's number since the start and the epoch. It differs in each lap, so data
// of an earlier lap is never taken for a message.
//
// Each side keeps its own counts in private memory, and the reader publishes its progress. A writer
// without room sets `starved` and checks for room once more. The reader checks `starved` each time
// it has published an eighth of the stream or a quarter of the slots. A stuck writer leaves more
// than that to read, so the reader always notices `starved`, or the writer notices the room.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weft/net/internal/mailbox.h"

namespace weft::net::internal {

// Zeroed memory is the valid initial state.
struct RingIndices {
  alignas(128) std::atomic<std::uint64_t> slots_taken;  // written by the reader
  std::atomic<std::uint64_t> bytes_taken;               // bytes taken from the stream
  alignas(128) std::atomic<std::uint32_t> starved;      // set by the writer
};

struct alignas(128) RingSlot {
  static constexpr std::size_t kRoom = 96;
  struct Header {
    Channel channel;
    std::uint64_t message;
    std::uint32_t length;
    // 0: the slot has a whole message. 1: the stream has a piece, and the slot its Place.
    std::uint32_t streams;
  };
  struct Place {
    std::uint64_t total;
    std::uint64_t offset;
  };
  std::atomic<std::uint64_t> stamp;
  Header header;
  std::byte bytes[kRoom];
};
static_assert(sizeof(RingSlot) == 128);

struct RingView {
  RingIndices* indices = nullptr;
  RingSlot* slots = nullptr;
  std::byte* stream = nullptr;
  std::uint64_t num_slots = 0;  // a power of two >= 4
  std::size_t bytes = 0;        // size of the stream; a power of two
  std::uint32_t epoch = 0;      // part of every stamp
  int peer = -1;                // rank at the other end

  RingSlot& slot(std::uint64_t number) const { return slots[number & (num_slots - 1)]; }
  std::uint64_t stamp(std::uint64_t number) const { return (number + 1) << 32 | epoch; }
  // Stamp of slot `number` before it is written.
  std::uint64_t stamp_before(std::uint64_t number) const {
    return number < num_slots ? 0 : stamp(number - num_slots);
  }
  // Longest piece. The reader copies one piece while the writer fills the next.
  std::size_t max_piece() const;
};

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(const RingView& ring) : ring_(ring) {}

  // Writes as much as fits of the rest of a message. `piece` has its start and length. Returns the
  // bytes written, or nullopt if there is too little room. Throws Error(kCorrupt) if the reader's
  // counts are impossible.
  std::optional<std::size_t> push(const Piece& piece, const std::byte* bytes);
  // True if one push() can write a whole message of this many bytes.
  bool is_one_piece(std::size_t total) const { return total <= ring_.max_piece(); }

 private:
  bool has_room(std::size_t streamed);
  void look();
  void copy_to_stream(const std::byte* bytes, std::size_t length);
  RingView ring_;
  std::uint64_t slots_ = 0;        // slots written
  std::uint64_t bytes_ = 0;        // bytes written to the stream
  std::uint64_t slots_taken_ = 0;  // last value read
  std::uint64_t bytes_taken_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(const RingView& ring) : ring_(ring) {}

  // Returns the piece at the front, or nullptr. Throws Error(kCorrupt) if the writer's stamp or
  // header is impossible.
  const Piece* front() {
    if (have_front_) return &front_;
    const std::uint64_t stamp = ring_.slot(slots_).stamp.load();
    if (stamp == ring_.stamp_before(slots_)) return nullptr;
    return read(stamp);
  }
  // Copies the payload of the front piece and frees its space. Returns true if a writer waits for
  // space.
  bool take(std::byte* place);
  bool empty() { return front() == nullptr; }

 private:
  [[noreturn]] void throw_corrupt(const char* what) const;
  const Piece* read(std::uint64_t stamp);
  void copy_from_stream(std::byte* place) const;
  RingView ring_;
  std::uint64_t slots_ = 0;  // slots taken
  std::uint64_t bytes_ = 0;  // bytes taken from the stream
  bool have_front_ = false;
  bool streams_ = false;  // true if the payload of the front piece is in the stream
  Piece front_;
};

}  // namespace weft::net::internal
