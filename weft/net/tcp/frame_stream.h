// Writer and reader of the frames of one stream, as pure state machines without sockets, clock or
// locks. The owner moves the bytes: over TCP, through a simulation or from a fuzzer.
//
//   push() ──► FrameWriter ── next(), advance() ──► bytes in transfer
//   bytes in transfer ── space(), filled() ──► FrameReader ── take(), place() ──► frames
//
// Payloads are not copied: next() returns the caller's memory, and space() the destination set by
// place().
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "weft/net/tcp/frame.h"

namespace weft::net::internal {

class FrameWriter {
 public:
  FrameWriter(std::uint16_t stream, std::uint32_t epoch) : stream_(stream), epoch_(epoch) {}

  // Appends a frame, and fills in stream, epoch, sequence, length and checksum. `payload` must stay
  // valid until advance() has counted the frame.
  void push(Header header, std::span<const std::byte> payload);
  // Number of frames that are not completely written.
  std::size_t frames() const { return queue_.size() - first_; }
  bool empty() const { return frames() == 0; }

  // Returns the next bytes to write, in at most parts.size() parts. The result is the number of
  // parts.
  std::size_t next(std::span<std::span<const std::byte>> parts) const;
  // Marks this many bytes as written. Returns the number of frames that are now complete, oldest
  // first.
  std::size_t advance(std::size_t bytes);

 private:
  struct Frame {
    HeaderBytes header;
    std::span<const std::byte> payload;
  };

  std::uint16_t stream_;
  std::uint32_t epoch_;
  std::uint64_t sequence_ = 0;
  std::vector<Frame> queue_;  // [first_, end)
  std::size_t first_ = 0;
  std::size_t sent_ = 0;  // bytes written of the first frame
};

class FrameReader {
 public:
  enum class Input { kNeedBytes, kHeader, kFrame };

  FrameReader(std::uint16_t stream, std::uint32_t epoch);

  // Processes the received bytes. Returns kHeader when a frame begins (repeatedly, until place()
  // sets the destination of its payload), and kFrame when its payload is complete. Drops and counts
  // frames of an older epoch. Throws Error(kCorrupt) for a bad checksum, a gap in the sequence,
  // another stream, or a later epoch; the stream is then unusable.
  Input take();
  const Header& header() const { return in_; }
  // Sets the destination of header().length bytes; valid until take() returns kFrame.
  void place(std::byte* at);

  // Destinations of the next bytes: first the rest of a payload (may be empty), then the staging
  // memory. Call it after take() has returned kNeedBytes.
  using Space = std::array<std::span<std::byte>, 2>;
  Space space();
  void filled(std::size_t bytes);

  // True between a header and the end of its payload, or within a header.
  bool mid_frame() const { return state_ != State::kHead || begin_ != end_; }
  // Number of frames of an older epoch so far.
  std::uint64_t stale() const { return stale_; }

 private:
  enum class State { kHead, kHeld, kBody, kSkip };
  static constexpr std::size_t kStaging = 16 * 1024;

  bool begin_frame();
  void absorb(std::size_t bytes);
  void take_staged();

  std::uint16_t stream_;
  std::uint32_t epoch_;
  State state_ = State::kHead;
  Header in_;
  std::byte* at_ = nullptr;
  std::size_t got_ = 0;
  std::uint32_t crc_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t stale_ = 0;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace weft::net::internal
