// Messages between the servers of a shard's chain, and views, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/ps/view.h"

namespace weft::ps::internal {

// Position in the kAck of a server that has no state yet.
inline constexpr std::uint64_t kNothing = ~std::uint64_t{0};

struct ChainMessage {
  enum class Kind : std::uint8_t {
    kEntry,  // to the next: a command
    kState,  // to the next: a piece of the whole state after a command
    kAlive,  // to the next: nothing new; to both neighbors: a pause
    kAck,    // to the one before: what this one and those after it have applied
  };
  Kind kind = Kind::kAck;
  std::uint32_t shard = 0;
  std::uint64_t view = 0;
  // Sender and receiver: a message to or from an earlier incarnation is dropped.
  Member from, to;
  // kEntry, kState: number of the (last) command. kAck: of the last one applied here.
  std::uint64_t position = 0;
  // kAck: number of the last command that the whole rest of the chain has applied.
  std::uint64_t committed = 0;
  // kState: number of the transfer, and of its piece from 0; the last one is empty. kAck of a
  // server without a state: the transfer that it receives, and how many of its pieces it has.
  std::uint64_t transfer = 0, piece = 0;
  // The sender may be busy and silent for so long from now on.
  std::uint64_t pause_ms = 0;
  std::string_view payload;  // refers to the bytes
};

std::string encode(const ChainMessage& message);
// Throws Error(kCorrupt).
ChainMessage decode_chain_message(std::string_view bytes);

std::string encode(const View& view);
View decode_view(std::string_view bytes);
std::string encode(const ServerAddress& address);
ServerAddress decode_address(std::string_view bytes);

}  // namespace weft::ps::internal
