// A whole stream of frames as a peer may send it: raw, or frames with right checksums and wrong
// contents; in pieces of any size. What gets through the reader goes to the mailbox, as in the
// endpoint.
#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "weft/base/crc32c.h"
#include "weft/net/internal/mailbox.h"
#include "weft/net/tcp/frame_stream.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::net::internal;

namespace {

constexpr std::uint32_t kEpoch = 3;
constexpr std::size_t kRoom = 1 << 20;

// Frames whose fields the input chooses, near what is allowed; every checksum is right unless it
// says otherwise.
std::vector<std::byte> frames_of(weft::fuzz::Bytes bytes) {
  std::vector<std::byte> stream;
  std::uint64_t sequence = 0;
  while (!bytes.empty()) {
    const auto what = bytes.number<std::uint8_t>();
    const auto payload = bytes.take(bytes.number<std::uint8_t>());
    Header header;
    header.type = static_cast<FrameType>((what & 7) < 5 ? 1 : what & 7);
    header.stream = (what & 8) != 0 && (what & 16) != 0 ? 1 : 0;
    header.epoch = kEpoch - (what >> 5 & 1);
    header.sequence = header.epoch == kEpoch ? sequence++ : bytes.number<std::uint8_t>();
    header.channel = bytes.number<std::uint8_t>() & 3;
    header.message = bytes.number<std::uint8_t>() & 3;
    header.offset = bytes.number<std::uint8_t>();
    header.total =
        header.offset + payload.size() + ((what & 64) != 0 ? bytes.number<std::uint32_t>() : 0);
    header.length = static_cast<std::uint32_t>((what & 128) != 0 ? bytes.number<std::uint32_t>()
                                                                 : payload.size());
    header.payload_crc = weft::crc32c(payload.data(), payload.size());
    const HeaderBytes head = encode(header);
    stream.insert(stream.end(), head.begin(), head.end());
    const auto body = std::as_bytes(std::span(payload));
    stream.insert(stream.end(), body.begin(), body.end());
  }
  return stream;
}

// Hands the next bytes over, as a socket would: no more than there is space for, and no more than
// `most`.
std::size_t feed(FrameReader& reader, std::span<const std::byte> rest, std::size_t most) {
  std::size_t moved = 0;
  for (const auto& part : reader.space()) {
    const std::size_t n = std::min({part.size(), rest.size() - moved, most - moved});
    std::copy_n(rest.begin() + static_cast<std::ptrdiff_t>(moved), n, part.begin());
    moved += n;
    if (n < part.size()) break;
  }
  check(moved > 0, "a reader that needs bytes has space for one");
  reader.filled(moved);
  return moved;
}

void read_all(std::span<const std::byte> stream, std::size_t most) {
  FrameReader reader(0, kEpoch);
  Mailbox mailbox(0, 2, kRoom);
  std::vector<std::byte> control;
  Piece piece;
  while (true) {
    const Header& h = reader.header();
    switch (reader.take()) {
      case FrameReader::Input::kNeedBytes:
        if (stream.empty()) return;
        stream = stream.subspan(feed(reader, stream, most));
        break;
      case FrameReader::Input::kHeader:
        check(h.epoch == kEpoch && h.stream == 0,
              "only frames of this stream and epoch come through");
        piece = {1, h.channel, h.message, h.total, h.offset, h.length};
        if (h.type == FrameType::kData) {
          if (!mailbox.has_room(piece)) return;
          reader.place(mailbox.begin(piece));
        } else {
          control.resize(h.length);
          reader.place(control.data());
        }
        break;
      case FrameReader::Input::kFrame:
        if (h.type == FrameType::kData) mailbox.end(piece);
        if (h.type == FrameType::kAbort) decode_abort(control);
        check(mailbox.waiting_bytes(1) <= kRoom + kMaxPayload + 1024,
              "what nobody waits for is bounded");
        break;
    }
  }
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::Bytes bytes(data, size);
  const auto mode = bytes.number<std::uint8_t>();
  const std::size_t most = 1 + bytes.number<std::uint8_t>() * 5;
  const auto raw = std::as_bytes(std::span(bytes.rest()));
  const std::vector<std::byte> stream =
      mode % 4 == 0 ? std::vector<std::byte>(raw.begin(), raw.end()) : frames_of(bytes);
  accepts({Errc::kCorrupt, Errc::kInvalidArgument}, [&] { read_all(stream, most); });
}
