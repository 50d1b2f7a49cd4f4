// Messages between the processes of one host, through memory that all processes map.
//
//   rank 0 ──ring 0→1──▶ rank 1      One ring for each ordered pair, one writer and one reader. A
//                                    message of up to 96 bytes is one or two
//          ◀─ring 1→0──              cache lines (internal/ring.h); a longer one streams through in
//                                    pieces, in both directions at once.
//                                    The calling threads do the work; there is no other thread. An
//                                    idle wait spins for some microseconds
// (not where ranks outnumber the processors that they may run on together), then sleeps on a futex
// in slices of 20 ms; each slice looks at the deadline, the group's first failure and lost_peer.
//
// Peers are trusted with the messages' contents only: lengths and indices that they write are
// checked, and a wrong one is Error(kCorrupt).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net {

struct ShmOptions {
  int rank = 0;
  int world = 1;
  std::uint32_t epoch = 0;
  // shm_region_bytes(world, ring_bytes) of memory, zero before the first rank starts, mapped by all
  // ranks and by nobody else, at addresses that are equal modulo 128. Used by one group only. It
  // must outlive the endpoint, or be held by `owner`.
  std::span<std::byte> region;
  std::shared_ptr<void> owner;
  // Gives a rank known to be dead. Asked every 20 ms or less often, by a thread that waits; it must
  // not call the endpoint. Empty: nobody is ever known to be.
  std::function<std::optional<int>()> lost_peer;
  // A power of two >= 4096, equal on all ranks: so many bytes of long messages and, for each KiB of
  // them (8 to 1024), a small message can be on their way. 0: 1 MiB, less in large worlds so that
  // all rings together stay below 64 MiB or 16 KiB each.
  std::size_t ring_bytes = 0;
};

// Throws Error(kInvalidArgument) for a world or a ring that cannot be.
std::size_t shm_region_bytes(int world, std::size_t ring_bytes = 0);

// A peer whose endpoint is destroyed has left: what it sent is still received, a call that needs
// more of it throws kPeerLost. When a call ends with an error, the group has failed: every rank's
// calls end, with kPeerLost and the same rank where a peer was lost, else with kAborted. A sender
// waits while 64 MiB of its messages wait at the peer for a receive; messages behind those wait
// too, whatever channel.
std::unique_ptr<Endpoint> make_shm(ShmOptions options);

}  // namespace weft::net
