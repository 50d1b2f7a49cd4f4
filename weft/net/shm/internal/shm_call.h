// Pending transfers of the calls of a shared-memory endpoint.
#pragma once

#include <span>

#include "weft/net/internal/mailbox.h"

namespace weft::net::internal {

// A pending send. It must stay valid until it is complete or the group has failed.
struct ShmOutgoing {
  Send send;
  Channel channel = 0;
  std::uint64_t message = 0;
  std::size_t offset = 0;
  Operation* operation = nullptr;
  bool done = false;

  Piece rest(int from) const {
    const std::size_t total = send.bytes.size();
    return {from, channel, message, total, offset, total - offset};
  }
};

// Transfers that one call waits for.
struct ShmCall {
  const char* name;
  Deadline deadline;
  Channel channel;
  std::span<const Receipt> receipts;
  std::span<const ShmOutgoing> sends;

  // The peer of the first transfer that is not complete, receives first. -1: there is none.
  int awaited() const;
  // The kTimeout error, naming the first missing peer.
  [[noreturn]] void throw_timeout(int rank) const;
};

// Number of messages sent to a peer on each channel. The last used channel is cached.
class SentCounts {
 public:
  std::uint64_t& of(Channel channel) {
    if (count_ == nullptr || last_ != channel) {
      count_ = &counts_[channel];  // the address is stable
      last_ = channel;
    }
    return *count_;
  }

 private:
  std::unordered_map<Channel, std::uint64_t> counts_;
  Channel last_ = 0;
  std::uint64_t* count_ = nullptr;
};

}  // namespace weft::net::internal
