// Endpoints for ranks that are threads of one process: for tests and in-process replicas.
#pragma once

#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net {

// One endpoint per rank; several threads may use it. A message is copied once if its receive is
// already posted, otherwise twice. A sender waits while 64 MiB of its messages wait for a receive
// on the peer. Destroying an endpoint removes its rank from the group: calls of other ranks that
// still need it throw kPeerLost naming it, and the group has then failed on every rank. Messages
// that it sent before are still received. No call may be in progress on an endpoint that is
// destroyed.
std::vector<std::unique_ptr<Endpoint>> make_inproc(int world, std::uint32_t epoch = 0);

}  // namespace weft::net
