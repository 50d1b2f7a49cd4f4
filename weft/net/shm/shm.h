// Messages between the processes of one host, through memory that all of them map.
//
//   rank 0 ──ring 0→1──▶ rank 1
//          ◀─ring 1→0──
//
// Each ordered pair of ranks has one ring, with one writer and one reader. A message of up to 96
// bytes takes one or two cache lines (internal/ring.h). A longer message is streamed in pieces, in
// both directions at once.
//
// The calling threads do the work; there is no background thread. An idle thread spins for some
// microseconds, unless there are more ranks than processors that they may run on. Then it sleeps on
// a futex in slices of 20 ms. After each slice it checks the deadline, the group's first failure
// and lost_peer.
//
// Lengths and indices that a peer writes are checked; a wrong one is Error(kCorrupt). The contents
// of messages are not checked.
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
  // Memory of shm_region_bytes(world, ring_bytes) bytes, zeroed before the first rank starts. All
  // ranks of one group map it, and no other process, at addresses that are equal modulo 128. It
  // must outlive the endpoint, or be held by `owner`.
  std::span<std::byte> region;
  std::shared_ptr<void> owner;
  // Returns a rank that is known to be dead. A waiting thread calls it at most every 20 ms. It must
  // not call the endpoint. Empty: no rank is ever known to be dead.
  std::function<std::optional<int>()> lost_peer;
  // Bytes of long messages that a ring holds: a power of two from 4096 to 2^30, equal on all ranks.
  // A ring also holds one small message for each KiB (at least 8, at most 1024). 0: the largest
  // power of two with which all rings take at most 32 MiB, but at least 8 KiB and at most 1 MiB.
  std::size_t ring_bytes = 0;
  // Throws the error by which the group has failed elsewhere, if it has. Pending and later calls of
  // this rank then end with it. A waiting thread calls it about every 20 ms. It must not call the
  // endpoint. Empty: no such failure is known.
  std::function<void(const char* operation)> check = {};
};

// Size of the region. Throws Error(kInvalidArgument) for an invalid `world` or `ring_bytes`.
std::size_t shm_region_bytes(int world, std::size_t ring_bytes = 0);

// A peer leaves when its endpoint is destroyed. Messages that it sent before are still received; a
// call that needs more of them throws kPeerLost. If a call ends with an error, the group has
// failed: the calls of every rank end, with kPeerLost and the same rank number if a peer was lost,
// otherwise with kAborted. A sender waits while 64 MiB of its messages wait at the peer for a
// receive. Later messages to this peer wait too, on any channel.
std::unique_ptr<Endpoint> make_shm(ShmOptions options);

}  // namespace weft::net
