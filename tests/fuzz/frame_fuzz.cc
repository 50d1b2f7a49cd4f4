// Frame headers and the payload of an abort, with the checksum as it comes and with one that is
// right.
#include "weft/net/tcp/frame.h"

#include "tests/fuzz/fuzz.h"
#include "weft/base/crc32c.h"
#include "weft/net/tcp/internal/wire.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::net::internal;

namespace {

void decode_header(const HeaderBytes& bytes) {
  accepts({Errc::kCorrupt}, [&] {
    const Header h = decode(bytes);
    check(h.length <= (h.type == FrameType::kData ? kMaxPayload : kMaxControl),
          "a frame's length is within its cap");
    if (h.type == FrameType::kData) {
      check(h.total <= kMaxMessage && h.offset <= h.total && h.length <= h.total - h.offset,
            "a frame lies within its message");
    }
    check(decode(encode(h)) == h, "a header that was accepted keeps every field through the wire");
  });
}

void decode_abort_payload(std::string_view text) {
  accepts({Errc::kCorrupt}, [&] {
    const Abort abort = decode_abort(std::as_bytes(std::span(text)));
    check(abort.message.find('\n') == std::string::npos, "an abort's message is one line");
    const Abort again = decode_abort(encode(abort));
    check(again.code == abort.code && again.peer == abort.peer && again.message == abort.message &&
              again.mismatch == abort.mismatch,
          "an abort keeps its meaning");
  });
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::Bytes bytes(data, size);
  auto header = bytes.array<HeaderBytes>();
  decode_header(header);
  constexpr std::size_t kCrcAt = 12;
  put(header.data() + kCrcAt, std::uint32_t{0});
  put(header.data() + kCrcAt, weft::crc32c(header.data(), header.size()));
  decode_header(header);
  decode_abort_payload(bytes.rest());
}
