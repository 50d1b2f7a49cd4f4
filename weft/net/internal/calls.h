// Exchanges the labels of long-running calls, separately from the messages. Ranks in different
// calls may have no message that reveals the mismatch, and would wait for each other. So a rank
// sends the label of a long-running call to all ranks, and ranks in the same call compare it.
//
// Has no locks and no clock: the owner guards it, and advances it by due().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net::internal {

class Calls {
 public:
  struct Shown {
    Channel channel = 0;
    std::uint64_t number = 0;
    Label::Bytes label{};
  };

  Calls(int rank, int world) : rank_(rank), world_(world) {}

  // Registers that this rank begins call `number` of `channel`, counted consecutively from 0.
  // Throws MismatchError if a peer has sent another label.
  void begin(Channel channel, std::uint64_t number, const Label& label);
  // Registers that a peer is in this call. Throws MismatchError if this rank's call with this
  // number has another label. If this rank has not begun the call, the peer's call is stored (only
  // the last one of each peer). Calls older than the last kKept count as equal.
  void shown(int peer, const Shown& call);
  // As shown(), by the label of a message that no receive awaits: such as of a broadcast whose root
  // is another rank here, where nobody receives. Numbers too far ahead are no calls.
  void arrived(int peer, Channel channel, const Label::Bytes& label);
  // Returns the last call of each channel that was also the last in the two previous calls of
  // due(). Each call is returned once.
  std::vector<Shown> due();

  static constexpr std::size_t kKept = 64;

 private:
  struct ChannelQueue {
    std::array<Label, kKept> labels;  // label of call n at index n % kKept
    std::uint64_t begun = 0;          // number of calls so far
    int turns = 0;                    // number of calls of due() since the last call began
    std::vector<std::optional<Shown>> early;
  };
  void compare(const Label& mine, int peer, const Label::Bytes& theirs) const;

  int rank_, world_;
  std::unordered_map<Channel, ChannelQueue> queues_;
};

}  // namespace weft::net::internal
