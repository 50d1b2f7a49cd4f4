#include "weft/net/shm/internal/ring.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace weft::net::internal {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kMaxPiece = std::size_t{64} << 10;

// Pieces start at cache lines.
std::size_t lines(std::size_t length) { return (length + kLine - 1) / kLine * kLine; }

bool fits_slot(const Piece& piece) {
  return piece.length == piece.total && piece.length <= RingSlot::kRoom;
}

// A constant length compiles to a few moves instead of a call.
void copy_small(std::byte* to, const std::byte* from, std::size_t length) {
  if (length == 8) {
    std::memcpy(to, from, 8);
  } else if (length > 0) {
    std::memcpy(to, from, length);
  }
}

}  // namespace

std::size_t RingView::max_piece() const { return std::min(kMaxPiece, bytes / 4); }

void RingWriter::look() {
  slots_taken_ = ring_.indices->slots_taken.load();
  bytes_taken_ = ring_.indices->bytes_taken.load();
  if (slots_ - slots_taken_ <= ring_.num_slots && bytes_ - bytes_taken_ <= ring_.bytes) return;
  throw Error(
      Errc::kCorrupt,
      "rank " + std::to_string(ring_.peer) + " wrote an impossible index into the shared ring",
      {"exchange", -1, ring_.peer});
}

bool RingWriter::has_room(std::size_t streamed) {
  const auto enough = [&] {
    return slots_ - slots_taken_ < ring_.num_slots &&
           bytes_ - bytes_taken_ + streamed <= ring_.bytes;
  };
  if (enough()) return true;
  look();
  if (enough()) return true;
  if (ring_.indices->starved.load() == 0) ring_.indices->starved.store(1);
  look();
  return enough();
}

void RingWriter::copy_to_stream(const std::byte* bytes, std::size_t length) {
  const std::size_t start = bytes_ & (ring_.bytes - 1);
  const std::size_t first = std::min(length, ring_.bytes - start);
  std::memcpy(ring_.stream + start, bytes, first);
  if (first < length) std::memcpy(ring_.stream, bytes + first, length - first);
  bytes_ += lines(length);
}

std::optional<std::size_t> RingWriter::push(const Piece& piece, const std::byte* bytes) {
  const bool here = fits_slot(piece);
  const std::size_t length = std::min(piece.length, ring_.max_piece());
  // Waits for room for a whole piece, since many small pieces would be slower.
  if (!has_room(here ? 0 : lines(length))) return std::nullopt;
  RingSlot& slot = ring_.slot(slots_);
  slot.header = {piece.channel, piece.message, static_cast<std::uint32_t>(length), here ? 0u : 1u};
  if (here) {
    copy_small(slot.bytes, bytes, length);
  } else {
    const RingSlot::Place place{piece.total, piece.offset};
    std::memcpy(slot.bytes, &place, sizeof place);
    copy_to_stream(bytes, length);
  }
  slot.stamp.store(ring_.stamp(slots_++), std::memory_order_release);
  return length;
}

void RingReader::throw_corrupt(const char* what) const {
  throw Error(Errc::kCorrupt,
              "rank " + std::to_string(ring_.peer) + " wrote an impossible " + what +
                  " into the shared ring",
              {"exchange", -1, ring_.peer});
}

const Piece* RingReader::read(std::uint64_t stamp) {
  if (stamp != ring_.stamp(slots_))
    throw_corrupt(static_cast<std::uint32_t>(stamp) == ring_.epoch ? "sequence number" : "epoch");
  const RingSlot& slot = ring_.slot(slots_);
  RingSlot::Header header;  // a copy, since the writer could change it after the checks
  std::memcpy(&header, &slot.header, sizeof header);
  if (header.streams > 1) throw_corrupt("header");
  streams_ = header.streams == 1;
  if (header.length > (streams_ ? ring_.max_piece() : RingSlot::kRoom)) throw_corrupt("length");
  RingSlot::Place place{header.length, 0};
  if (streams_) std::memcpy(&place, slot.bytes, sizeof place);
  front_.peer = ring_.peer;
  front_.channel = header.channel;
  front_.message = header.message;
  front_.total = place.total;
  front_.offset = place.offset;
  front_.length = header.length;
  have_front_ = true;
  return &front_;
}

void RingReader::copy_from_stream(std::byte* place) const {
  const std::size_t start = bytes_ & (ring_.bytes - 1);
  const std::size_t first = std::min(front_.length, ring_.bytes - start);
  if (first > 0) std::memcpy(place, ring_.stream + start, first);
  if (first < front_.length) std::memcpy(place + first, ring_.stream, front_.length - first);
}

bool RingReader::take(std::byte* place) {
  const std::uint64_t before = bytes_;
  if (streams_) {
    copy_from_stream(place);
    bytes_ += lines(front_.length);
    ring_.indices->bytes_taken.store(bytes_, std::memory_order_release);
  } else {
    copy_small(place, ring_.slot(slots_).bytes, front_.length);
  }
  have_front_ = false;
  ring_.indices->slots_taken.store(++slots_, std::memory_order_release);
  if (slots_ % (ring_.num_slots / 4) != 0 &&
      before / (ring_.bytes / 8) == bytes_ / (ring_.bytes / 8))
    return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return ring_.indices->starved.load(std::memory_order_relaxed) != 0 &&
         ring_.indices->starved.exchange(0) != 0;
}

}  // namespace weft::net::internal
