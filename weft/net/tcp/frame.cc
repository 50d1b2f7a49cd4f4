#include "weft/net/tcp/frame.h"

#include <algorithm>

#include "weft/base/crc32c.h"
#include "weft/net/internal/failure.h"
#include "weft/net/tcp/internal/wire.h"

namespace weft::net::internal {
namespace {

constexpr std::uint32_t kMagic = 0x31544657;  // "WFT1"
constexpr std::size_t kCrcAt = 12;
constexpr std::int32_t kMismatchBit = 1 << 8;  // of an abort's code

std::uint32_t header_crc(HeaderBytes bytes) {
  put(bytes.data() + kCrcAt, std::uint32_t{0});
  return crc32c(bytes.data(), bytes.size());
}

[[noreturn]] void corrupt(const std::string& what) { throw Error(Errc::kCorrupt, what); }

void check_bounds(const Header& h) {
  if (h.type == FrameType::kData) {
    if (h.length > kMaxPayload)
      corrupt("a data frame claims " + std::to_string(h.length) +
              " bytes, more than a frame may carry");
    if (h.total > kMaxMessage)
      corrupt("a message claims " + std::to_string(h.total) +
              " bytes, more than a message may have");
    if (h.offset > h.total || h.length > h.total - h.offset)
      corrupt("a data frame is outside its message");
    if (h.length == 0 && h.total != 0)
      corrupt("an empty data frame of a message that is not empty");
  } else if (h.length > (h.type == FrameType::kCall ? 0 : kMaxControl)) {
    corrupt("a control frame claims " + std::to_string(h.length) +
            " bytes, more than a control frame may carry");
  }
}

}  // namespace

HeaderBytes encode(const Header& header) {
  HeaderBytes bytes{};
  std::byte* at = bytes.data();
  put(at, kMagic);
  put(at + 4, static_cast<std::uint8_t>(header.type));
  put(at + 6, header.stream);
  put(at + 8, header.epoch);
  put(at + 16, header.channel);
  put(at + 24, header.sequence);
  put(at + 32, header.message);
  put(at + 40, header.total);
  put(at + 48, header.offset);
  put(at + 56, header.length);
  put(at + 60, header.payload_crc);
  put(at + 64, header.label);
  put(at + kCrcAt, header_crc(bytes));
  return bytes;
}

Header decode(std::span<const std::byte, kHeaderBytes> span) {
  HeaderBytes bytes;
  std::copy(span.begin(), span.end(), bytes.begin());
  const std::byte* at = bytes.data();
  if (get<std::uint32_t>(at) != kMagic) corrupt("a frame does not start with the magic number");
  if (get<std::uint32_t>(at + kCrcAt) != header_crc(bytes))
    corrupt("a frame's header fails its checksum");
  const auto type = get<std::uint8_t>(at + 4);
  if (type < 1 || type > 5) corrupt("a frame of unknown type " + std::to_string(type));
  if (get<std::uint8_t>(at + 5) != 0) corrupt("a frame whose reserved byte is not zero");
  Header h;
  h.type = static_cast<FrameType>(type);
  h.stream = get<std::uint16_t>(at + 6);
  h.epoch = get<std::uint32_t>(at + 8);
  h.channel = get<std::uint64_t>(at + 16);
  h.sequence = get<std::uint64_t>(at + 24);
  h.message = get<std::uint64_t>(at + 32);
  h.total = get<std::uint64_t>(at + 40);
  h.offset = get<std::uint64_t>(at + 48);
  h.length = get<std::uint32_t>(at + 56);
  h.payload_crc = get<std::uint32_t>(at + 60);
  h.label = get<Label::Bytes>(at + 64);
  check_bounds(h);
  return h;
}

std::vector<std::byte> encode(const Abort& abort) {
  const std::size_t text = std::min(abort.message.size(), kMaxControl - 8);
  std::vector<std::byte> bytes(8 + text);
  put(bytes.data(), static_cast<std::int32_t>(abort.code) | (abort.mismatch ? kMismatchBit : 0));
  put(bytes.data() + 4, static_cast<std::int32_t>(abort.peer));
  std::memcpy(bytes.data() + 8, abort.message.data(), text);
  return bytes;
}

Abort decode_abort(std::span<const std::byte> bytes) {
  if (bytes.size() < 8 || bytes.size() > kMaxControl) corrupt("an abort frame of a wrong size");
  const auto word = get<std::int32_t>(bytes.data());
  const auto code = word & ~kMismatchBit;
  if (code < 0 || code > static_cast<std::int32_t>(Errc::kInternal))
    corrupt("an abort frame with an unknown code");
  Abort abort;
  abort.code = static_cast<Errc>(code);
  abort.mismatch = word != code;
  abort.peer = get<std::int32_t>(bytes.data() + 4);
  abort.message.assign(reinterpret_cast<const char*>(bytes.data()) + 8, bytes.size() - 8);
  // The text goes to a log line, so it must not contain a line break.
  for (char& c : abort.message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return abort;
}

// The peers throw kAborted for an error other than a lost peer, a mismatch or an abort. So its text
// must also name the code and the operation.
std::optional<Abort> abort_of(const Error& error, const Error& first) {
  const bool lost = error.code() == Errc::kPeerLost;
  const bool mismatch = dynamic_cast<const MismatchError*>(&error) != nullptr;
  const bool aborted = dynamic_cast<const AbortedError*>(&error) != nullptr;
  if (!aborted && error.code() == Errc::kAborted) return std::nullopt;
  return Abort{error.code(), error.context().peer,
               lost || mismatch || aborted ? error.message() : first.what(), mismatch};
}

void throw_abort(const Abort& abort, int rank, int from, int world) {
  if (abort.mismatch) throw MismatchError(Error(abort.code, abort.message, {"", rank, from}));
  const std::string sender = "rank " + std::to_string(from);
  const bool is_passed_on = abort.code == Errc::kAborted && abort.peer >= 0;
  if (abort.code != Errc::kPeerLost && !is_passed_on)
    throw AbortedError(
        Error(Errc::kAborted, sender + " failed: " + abort.message, {"", rank, from}));
  if (abort.peer < 0 || abort.peer >= world)
    corrupt("an abort frame that names no rank of the group");
  if (is_passed_on)
    throw AbortedError(Error(Errc::kAborted, abort.message, {"", rank, abort.peer}));
  if (abort.peer == rank)
    throw Error(Errc::kAborted, sender + " gave this rank up: " + abort.message, {"", rank, from});
  throw Error(Errc::kPeerLost, abort.message, {"", rank, abort.peer});
}

}  // namespace weft::net::internal
