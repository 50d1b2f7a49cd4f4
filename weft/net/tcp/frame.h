// The frames of the TCP transport: 104 bytes of header, then at most kMaxPayload bytes. Pure
// functions over bytes, no sockets.
//
// Header, little-endian; the number is the size of the field in bytes:
//
//   magic 4 | type 1 | zero 1 | stream 2 | epoch 4 | header CRC32C 4 | channel 8 | sequence 8 |
//   message 8 | total 8 | offset 8 | length 4 | payload CRC32C 4 | label 40
//
// A large message is sent as several data frames (offset, length of total) over several streams.
// `sequence` counts the frames of one stream, `message` the messages of one channel between two
// ranks. Other frames are heartbeats, goodbyes, aborts and calls. The frame of a call (calls.h) has
// a channel, a number (in `message`) and a label, and no payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net::internal {

inline constexpr std::size_t kHeaderBytes = 104;
// Largest payload of a data frame. A receiver allocates at most this for an unexpected frame.
inline constexpr std::size_t kMaxPayload = 256 * 1024;
inline constexpr std::size_t kMaxControl = 1024;
inline constexpr std::uint64_t kMaxMessage = std::uint64_t{1} << 40;

enum class FrameType : std::uint8_t {
  kData = 1,
  kHeartbeat = 2,
  kAbort = 3,
  kGoodbye = 4,
  kCall = 5
};

struct Header {
  FrameType type = FrameType::kData;
  std::uint16_t stream = 0;
  std::uint32_t epoch = 0;
  Channel channel = 0;
  std::uint64_t sequence = 0;
  std::uint64_t message = 0;
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::uint32_t payload_crc = 0;
  Label::Bytes label{};

  bool operator==(const Header&) const = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const Header& header);

// Throws Error(kCorrupt) if the magic number, the header's CRC, the type or a bound is wrong. The
// result respects all limits above.
Header decode(std::span<const std::byte, kHeaderBytes> bytes);

// The payload of an abort frame: which error ended the group, and the rank at fault (-1: none).
// kAborted with a rank: that rank has ended the group, and another one passes it on.
struct Abort {
  Errc code = Errc::kInternal;
  int peer = -1;
  std::string message;
  bool mismatch = false;  // two ranks made different calls: the same error on every rank
};
std::vector<std::byte> encode(const Abort& abort);
// Throws Error(kCorrupt) for anything that encode() does not produce.
Abort decode_abort(std::span<const std::byte> bytes);
// The abort by which a rank tells the others of the error that ended its group. `first` is the same
// error with the operation that found it. nullopt: another rank gave this one up, and has told the
// others.
std::optional<Abort> abort_of(const Error& error, const Error& first);
// Throws the error that an abort of rank `from` is to `rank`. Throws Error(kCorrupt) for an abort
// that names no rank of the group of `world`, where it must.
[[noreturn]] void throw_abort(const Abort& abort, int rank, int from, int world);

}  // namespace weft::net::internal
