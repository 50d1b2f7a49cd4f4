// Which transports carry a group, and how they are made.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "weft/comm/backend.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/meeting.h"

namespace weft::comm::internal {

// Collective over the ranks that meet; throws as make_backend() says.
//   one rank: itself · all on one host: shared memory · several hosts: TCP (MPI where that is how
//   they meet), and shared memory within each
std::unique_ptr<Engine> make_engine(const Forming& forming, const BackendOptions& options);

// Messages between the ranks of a host, through memory of theirs. Collective. `host` outlives it.
std::unique_ptr<net::Endpoint> make_rings(net::Host& host, std::uint32_t epoch,
                                          std::chrono::nanoseconds timeout);

}  // namespace weft::comm::internal
