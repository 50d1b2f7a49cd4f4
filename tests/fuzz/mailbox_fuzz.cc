// Pieces of messages as a peer that holds the secret may send them, mixed with receives: whatever
// it claims, what is delivered is whole.
#include "weft/net/internal/mailbox.h"

#include <deque>
#include <vector>

#include "tests/fuzz/fuzz.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::net::internal;

namespace {

constexpr std::size_t kRoom = 1 << 20;

// A receive with its buffer, where it stays.
struct Posted {
  std::vector<std::byte> buffer;
  Operation operation;
  Receipt receipt;
};

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::Bytes bytes(data, size);
  Mailbox mailbox(0, 2, kRoom);
  std::deque<Posted> posted;
  accepts({Errc::kCorrupt, Errc::kInvalidArgument}, [&] {
    while (!bytes.empty()) {
      const auto what = bytes.number<std::uint8_t>();
      const weft::net::Channel channel = what >> 4 & 1;
      const std::uint64_t length = bytes.number<std::uint8_t>();
      if ((what & 3) == 0) {
        Posted& one = posted.emplace_back();
        one.buffer.resize(length);
        one.receipt = {{1, one.buffer}, &one.operation};
        mailbox.post(channel, one.receipt);
        continue;
      }
      if ((what & 3) == 1) {
        check(mailbox.any(channel) <= 1, "only a rank of the group has sent");
        continue;
      }
      // As a frame header may say it after decode().
      const std::uint64_t message = bytes.number<std::uint8_t>() % 4,
                          offset = bytes.number<std::uint8_t>();
      const std::uint64_t total =
          offset + length + ((what & 4) != 0 ? bytes.number<std::uint8_t>() : 0);
      const Piece piece{1, channel, message, total, offset, length};
      if ((length == 0 && total != 0) || !mailbox.has_room(piece)) continue;
      std::byte* const place = mailbox.begin(piece);
      if (length > 0) std::memset(place, 0x11, length);
      mailbox.end(piece);
    }
  });
  for (const Posted& one : posted) {
    if (!one.receipt.done) continue;
    check(one.receipt.received == one.buffer.size(), "a receive is done when it has all its bytes");
  }
}
