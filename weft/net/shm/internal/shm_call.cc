#include "weft/net/shm/internal/shm_call.h"

#include "weft/net/channels.h"

namespace weft::net::internal {

int ShmCall::awaited() const {
  for (const Receipt& receipt : receipts) {
    if (!receipt.done) return receipt.recv.peer;
  }
  for (const ShmOutgoing& outgoing : sends) {
    if (!outgoing.done) return outgoing.send.peer;
  }
  return -1;
}

void ShmCall::throw_timeout(int rank) const {
  const std::string tail = on_channel(channel) + " was not complete before the deadline";
  for (const Receipt& receipt : receipts) {
    const int peer = receipt.recv.peer;
    if (!receipt.done)
      throw Error(Errc::kTimeout, "the receive from rank " + std::to_string(peer) + tail,
                  {name, rank, peer});
  }
  for (const ShmOutgoing& outgoing : sends) {
    const int peer = outgoing.send.peer;
    if (!outgoing.done)
      throw Error(Errc::kTimeout, "the send to rank " + std::to_string(peer) + tail,
                  {name, rank, peer});
  }
  throw Error(Errc::kTimeout, "no message" + on_channel(channel) + " before the deadline",
              {name, rank});
}

}  // namespace weft::net::internal
