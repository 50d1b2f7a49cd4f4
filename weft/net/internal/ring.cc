#include "weft/net/internal/ring.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace weft::net::internal {
namespace {

struct Header {
  std::uint64_t channel;
  std::uint64_t message;
  std::uint64_t total;
  std::uint64_t offset;
  std::uint32_t length;
  std::uint32_t sequence;
  std::uint32_t epoch;
  std::uint32_t reserved;
};
static_assert(sizeof(Header) == 48);

constexpr std::size_t kLine = 64;
// A piece is at most this long and at most a quarter of the ring, so that the reader copies one while the writer fills the next.
constexpr std::size_t kMaxPiece = std::size_t{64} << 10;

std::size_t frame_bytes(std::size_t length) { return (sizeof(Header) + length + kLine - 1) / kLine * kLine; }

std::size_t max_piece(std::size_t ring_bytes) { return std::min(kMaxPiece, ring_bytes / 4); }

}  // namespace

std::size_t RingWriter::room() {
  const std::uint64_t used = head_ - tail_;
  if (used > ring_.bytes) {
    throw Error(Errc::kCorrupt, "rank " + std::to_string(ring_.peer) + " wrote an impossible index into the shared ring",
                {"exchange", -1, ring_.peer});
  }
  return ring_.bytes - used;
}

std::optional<std::size_t> RingWriter::push(const Piece& piece, const std::byte* bytes) {
  const std::size_t wanted = std::min(piece.length, max_piece(ring_.bytes));
  // Waits for room for a whole piece: many small ones would cost more than they gain.
  if (room() < frame_bytes(wanted)) {
    tail_ = ring_.indices->tail.load();
    if (room() < frame_bytes(wanted)) return std::nullopt;
  }
  const Header header{
      piece.channel, piece.message, piece.total, piece.offset, static_cast<std::uint32_t>(wanted), sequence_++, ring_.epoch, 0};
  const std::size_t mask = ring_.bytes - 1;
  std::memcpy(ring_.data + (head_ & mask), &header, sizeof header);
  if (wanted > 0) {
    const std::size_t start = (head_ + sizeof header) & mask;
    const std::size_t first = std::min(wanted, ring_.bytes - start);
    std::memcpy(ring_.data + start, bytes, first);
    if (first < wanted) std::memcpy(ring_.data, bytes + first, wanted - first);
  }
  head_ += frame_bytes(wanted);
  ring_.indices->head.store(head_);
  return wanted;
}

void RingReader::throw_corrupt(const char* what) const {
  throw Error(Errc::kCorrupt, "rank " + std::to_string(ring_.peer) + " wrote an impossible " + what + " into the shared ring",
              {"exchange", -1, ring_.peer});
}

const Piece* RingReader::front() {
  if (have_front_) return &front_;
  if (head_ == tail_) {
    head_ = ring_.indices->head.load();
    if (head_ == tail_) return nullptr;
  }
  const std::uint64_t used = head_ - tail_;
  if (used > ring_.bytes || used % kLine != 0) throw_corrupt("index");
  Header header;  // a copy: the writer could change it after the checks
  std::memcpy(&header, ring_.data + (tail_ & (ring_.bytes - 1)), sizeof header);
  if (header.length > max_piece(ring_.bytes) || frame_bytes(header.length) > used) throw_corrupt("length");
  if (header.sequence != sequence_) throw_corrupt("sequence number");
  if (header.epoch != ring_.epoch) throw_corrupt("epoch");
  front_ = {ring_.peer, header.channel, header.message, header.total, header.offset, header.length};
  have_front_ = true;
  return &front_;
}

bool RingReader::take(std::byte* place) {
  if (front_.length > 0) {
    const std::size_t start = (tail_ + sizeof(Header)) & (ring_.bytes - 1);
    const std::size_t first = std::min(front_.length, ring_.bytes - start);
    std::memcpy(place, ring_.data + start, first);
    if (first < front_.length) std::memcpy(place + first, ring_.data, front_.length - first);
  }
  const std::uint64_t before = tail_;
  tail_ += frame_bytes(front_.length);
  ++sequence_;
  have_front_ = false;
  ring_.indices->tail.store(tail_);
  // A writer finds no room only while more than half is used (a piece is a quarter at most). It published its index before it looked for
  // room, and we look at that index after publishing ours: one of the two sees the other.
  return ring_.indices->head.load() - before > ring_.bytes / 2;
}

}  // namespace weft::net::internal
