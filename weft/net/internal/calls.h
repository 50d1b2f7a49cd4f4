// What the ranks say of the calls that they are in, beside the messages of those: ranks that call
// different things may have no message to find it by, and would wait for each other. A call that
// lasts is shown to all ranks; who is in the same call compares.
//
// No locks, no clock: the owner guards it, and turns it by due().
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

  // This rank begins call `number` of `channel`, one after the other from 0. Throws MismatchError
  // where a peer has shown another label.
  void begin(Channel channel, std::uint64_t number, const Label& label);
  // A peer is in this call. Throws MismatchError where this rank's call of that number was another.
  // One that this rank has not begun yet is kept, the last one of each peer; one older than the
  // last kKept calls counts as equal.
  void shown(int peer, const Shown& call);
  // The last calls of all channels that were the last in two calls of due() before this one
  // already; each once.
  std::vector<Shown> due();

  static constexpr std::size_t kKept = 64;

 private:
  struct ChannelQueue {
    std::array<Label, kKept> labels;  // of call n at n % kKept
    std::uint64_t begun = 0;          // calls so far
    int turns = 0;                    // of due() since the last one began
    std::vector<std::optional<Shown>> early;
  };
  void compare(const Label& mine, int peer, const Label::Bytes& theirs) const;

  int rank_, world_;
  std::unordered_map<Channel, ChannelQueue> queues_;
};

}  // namespace weft::net::internal
