// Ranks as threads of one process: tests, in-process replicas.
#pragma once

#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net {

// One endpoint a rank, each for one thread or several. A message is copied once where its receive
// is already posted, else twice; a sender waits while 64 MiB of its messages wait to be received at
// the peer. Destroying an endpoint takes its rank from the group: calls of the others that still
// need it throw kPeerLost naming it, and with that the group has failed on every rank. What it sent
// before is still received. No call may be under way on an endpoint that is destroyed.
std::vector<std::unique_ptr<Endpoint>> make_inproc(int world, std::uint32_t epoch = 0);

}  // namespace weft::net
