// A frame is checked twice. The header has its own CRC, checked before its fields are used: a
// damaged length cannot move the reader out of step. The payload's CRC is computed while the bytes
// arrive, so they are read while they are in the cache. It is checked before the frame is reported:
// the payload may lie in the caller's buffer already, but its message does not count as received.
//
// Sequence numbers find a frame that is missing, repeated or on another stream. Frames of an older
// epoch are skipped, with their payload, before they are counted. A later epoch is an error, since
// a connection belongs to one group.
//
// States of the reader:
//
//   kHead ── header complete ─► kHeld ── place() ─► kBody ── payload complete ─► kHead
//     └── header of an older epoch ─► kSkip ──────────────── payload complete ─► kHead
#include "weft/net/tcp/frame_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "weft/base/crc32c.h"

namespace weft::net::internal {

// ---- out

void FrameWriter::push(Header header, std::span<const std::byte> payload) {
  header.stream = stream_;
  header.epoch = epoch_;
  header.sequence = sequence_++;
  header.length = static_cast<std::uint32_t>(payload.size());
  // Computed when the frame is pushed: the caller must not change the bytes from here on.
  header.payload_crc = crc32c(payload.data(), payload.size());
  queue_.push_back({encode(header), payload});
}

std::size_t FrameWriter::next(std::span<std::span<const std::byte>> parts) const {
  std::size_t count = 0;
  std::size_t skip = sent_;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped < bytes.size() && count < parts.size()) parts[count++] = bytes.subspan(skipped);
  };
  for (std::size_t i = first_; i < queue_.size() && count < parts.size(); ++i) {
    add(queue_[i].header);
    add(queue_[i].payload);
  }
  return count;
}

std::size_t FrameWriter::advance(std::size_t bytes) {
  sent_ += bytes;
  std::size_t complete = 0;
  for (; first_ < queue_.size() && sent_ >= kHeaderBytes + queue_[first_].payload.size();
       ++first_, ++complete) {
    sent_ -= kHeaderBytes + queue_[first_].payload.size();
  }
  if (first_ == queue_.size()) {
    WEFT_CHECK(sent_ == 0, "advance() beyond the data to write");
    queue_.clear();
    first_ = 0;
  }
  return complete;
}

// ---- in

FrameReader::FrameReader(std::uint16_t stream, std::uint32_t epoch)
    : stream_(stream), epoch_(epoch), staging_(new std::byte[kStaging]) {}

// Reads a header. Returns false if it is incomplete.
bool FrameReader::begin_frame() {
  if (end_ - begin_ < kHeaderBytes) return false;
  in_ = decode(std::span<const std::byte, kHeaderBytes>(staging_.get() + begin_, kHeaderBytes));
  begin_ += kHeaderBytes;
  got_ = 0;
  if (in_.epoch < epoch_) {  // a frame of an ended group; its sequence is ignored
    ++stale_;
    state_ = State::kSkip;
    return true;
  }
  const auto corrupt = [](const std::string& what) { throw Error(Errc::kCorrupt, what); };
  if (in_.epoch != epoch_)
    corrupt("a frame of epoch " + std::to_string(in_.epoch) + " in a group of epoch " +
            std::to_string(epoch_));
  if (in_.stream != stream_)
    corrupt("a frame of stream " + std::to_string(in_.stream) + " on stream " +
            std::to_string(stream_));
  if (in_.sequence != sequence_) {
    corrupt("frame " + std::to_string(in_.sequence) + " instead of frame " +
            std::to_string(sequence_));
  }
  ++sequence_;
  state_ = State::kHeld;
  return true;
}

// Counts `bytes` of the payload that are in place.
void FrameReader::absorb(std::size_t bytes) {
  crc_ = crc32c(at_ + got_, bytes, crc_);
  got_ += bytes;
}

// Moves the bytes of the payload out of the staging memory.
void FrameReader::take_staged() {
  const std::size_t n = std::min<std::size_t>(in_.length - got_, end_ - begin_);
  if (n == 0) return;
  if (state_ == State::kBody) {
    std::memcpy(at_ + got_, staging_.get() + begin_, n);
    absorb(n);
  } else {
    got_ += n;
  }
  begin_ += n;
}

FrameReader::Input FrameReader::take() {
  while (true) {
    if (state_ == State::kHead && !begin_frame()) return Input::kNeedBytes;
    if (state_ == State::kHeld) return Input::kHeader;
    take_staged();
    if (got_ < in_.length) return Input::kNeedBytes;
    const bool skipped = state_ == State::kSkip;
    state_ = State::kHead;
    if (skipped) continue;
    if (crc_ != in_.payload_crc)
      throw Error(Errc::kCorrupt, "a frame's payload fails its checksum");
    return Input::kFrame;
  }
}

void FrameReader::place(std::byte* at) {
  at_ = at;
  crc_ = 0;
  state_ = State::kBody;
}

FrameReader::Space FrameReader::space() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {  // moves a part of a header to the front, so that the rest fits after it
    std::memmove(staging_.get(), staging_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t direct = state_ == State::kBody ? in_.length - got_ : 0;
  return {std::span(at_ + (direct > 0 ? got_ : 0), direct),
          std::span(staging_.get() + end_, kStaging - end_)};
}

void FrameReader::filled(std::size_t bytes) {
  const std::size_t direct =
      std::min<std::size_t>(state_ == State::kBody ? in_.length - got_ : 0, bytes);
  if (direct > 0) absorb(direct);
  end_ += bytes - direct;
}

}  // namespace weft::net::internal
