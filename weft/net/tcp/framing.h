// The frames of one stream as pure state machines: what to write next, and what the bytes that came
// mean. No sockets, no clock, no locks; the owner moves the bytes, over TCP, through a simulation
// or out of a fuzzer.
//
//   push() ──► FrameWriter ── next() ──► bytes on the way ──► space(), filled() ──► FrameReader ──
//   take() ──► headers and frames
//              advance(n)                                                           place(at)
//
// Payloads are not copied: next() gives the caller's memory, space() the place that place() named.
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

  // Appends a frame; stream, epoch, sequence, length and checksum are filled in. `payload` stays
  // where it is until advance() has counted the frame.
  void push(Header header, std::span<const std::byte> payload);
  // Frames that are not wholly written.
  std::size_t frames() const { return queue_.size() - first_; }
  bool empty() const { return frames() == 0; }

  // The bytes that go out next, in at most parts.size() parts; gives how many parts.
  std::size_t next(std::span<std::span<const std::byte>> parts) const;
  // So many of them went out. Gives the number of frames that are complete by that, oldest first.
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
  std::size_t sent_ = 0;  // bytes of the first
};

class FrameReader {
 public:
  enum class Input { kNeedBytes, kHeader, kFrame };

  FrameReader(std::uint16_t stream, std::uint32_t epoch);

  // Works off what came: kHeader when a frame begins (again and again until place() says where its
  // payload goes), kFrame when its payload is complete. Frames of an older epoch are dropped and
  // counted. Throws Error(kCorrupt) for a bad checksum, a gap in the sequence, another stream, or
  // an epoch that is not there yet; the stream is worth nothing then.
  Input take();
  const Header& header() const { return in_; }
  // header().length bytes, until take() gives kFrame.
  void place(std::byte* at);

  // Where the next bytes go, in this order: the rest of a payload into its place (may be empty),
  // and what follows. take() gave kNeedBytes before.
  using Space = std::array<std::span<std::byte>, 2>;
  Space space();
  void filled(std::size_t bytes);

  // True between a header and the end of its payload, or within a header.
  bool mid_frame() const { return state_ != State::kHead || begin_ != end_; }
  // Frames of an older epoch so far.
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
