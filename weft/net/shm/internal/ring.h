// A ring of messages in shared memory: one process writes, another reads. Neither trusts the
// other's index or header.
//
//   slots    │ stamp, header, ≤ 96 bytes │ stamp, header │ …
//   stream   │ pieces of longer messages, in the slots' order │
//
// The writer stores a slot's stamp last. The reader waits on the stamp of the next slot. So a small
// message costs one cache line, and no index is read while there is room.
//
// A stamp is the slot's number since the start and the epoch; it is another in each lap, so that
// what an earlier lap left is never taken for a message. Each side keeps its own counts in private
// memory; the reader publishes what it has taken. The writer that finds no room says so (`starved`)
// and looks once more; the reader looks at that after each eighth of the stream and each quarter of
// the slots that it has published: one of the two sees the other, and more than that is there to be
// read when the writer is stuck.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weft/net/internal/mailbox.h"

namespace weft::net::internal {

struct RingIndices {                                    // zero is the valid start
  alignas(128) std::atomic<std::uint64_t> slots_taken;  // written by the reader
  std::atomic<std::uint64_t> bytes_taken;               // of the stream
  alignas(128) std::atomic<std::uint32_t> starved;      // set by the writer
};

struct alignas(128) RingSlot {
  static constexpr std::size_t kRoom = 96;
  struct Header {
    Channel channel;
    std::uint64_t message;
    std::uint32_t length;
    // 0: a whole message, here; 1: a piece in the stream, and here its Place.
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
  std::size_t bytes = 0;        // of the stream; a power of two
  std::uint32_t epoch = 0;      // stands in every stamp
  int peer = -1;                // who is at the other end

  RingSlot& slot(std::uint64_t number) const { return slots[number & (num_slots - 1)]; }
  std::uint64_t stamp(std::uint64_t number) const { return (number + 1) << 32 | epoch; }
  // What is there before slot `number` is written.
  std::uint64_t stamp_before(std::uint64_t number) const {
    return number < num_slots ? 0 : stamp(number - num_slots);
  }
  // The longest piece: the reader copies one while the writer fills the next.
  std::size_t max_piece() const;
};

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(const RingView& ring) : ring_(ring) {}

  // Writes as much as fits of the rest of a message; `piece` says where that starts and how long it
  // is. Gives the bytes written; nullopt when there is no room worth using. Throws Error(kCorrupt)
  // when the reader's counts are impossible.
  std::optional<std::size_t> push(const Piece& piece, const std::byte* bytes);
  // Whether one push() takes all of a message of so many bytes.
  bool is_one_piece(std::size_t total) const { return total <= ring_.max_piece(); }

 private:
  bool has_room(std::size_t streamed);
  void look();
  void copy_to_stream(const std::byte* bytes, std::size_t length);
  RingView ring_;
  std::uint64_t slots_ = 0;        // written
  std::uint64_t bytes_ = 0;        // written to the stream
  std::uint64_t slots_taken_ = 0;  // as last seen
  std::uint64_t bytes_taken_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(const RingView& ring) : ring_(ring) {}

  // The piece at the front, nullptr when there is none. Throws Error(kCorrupt) when the writer's
  // stamp or header is impossible.
  const Piece* front() {
    if (have_front_) return &front_;
    const std::uint64_t stamp = ring_.slot(slots_).stamp.load();
    if (stamp == ring_.stamp_before(slots_)) return nullptr;
    return read(stamp);
  }
  // Copies the front's payload and frees its place. True where a writer waits for that place.
  bool take(std::byte* place);
  bool empty() { return front() == nullptr; }

 private:
  [[noreturn]] void throw_corrupt(const char* what) const;
  const Piece* read(std::uint64_t stamp);
  void copy_from_stream(std::byte* place) const;
  RingView ring_;
  std::uint64_t slots_ = 0;  // taken
  std::uint64_t bytes_ = 0;  // taken from the stream
  bool have_front_ = false;
  bool streams_ = false;  // where the front's payload is
  Piece front_;
};

}  // namespace weft::net::internal
