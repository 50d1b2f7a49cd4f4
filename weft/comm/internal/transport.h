// Which transports carry a group, and how they are made.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "weft/comm/backend.h"
#include "weft/comm/internal/engine.h"

namespace weft::comm::internal {

// Collective over the ranks that share `store`; throws as make_backend() says.
//   one rank: itself · all on one host: shared memory · several hosts: TCP, and shared memory within each of them
std::unique_ptr<Engine> make_engine(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const BackendOptions& options);

// Messages between the ranks of a host, through memory of theirs. Collective. `host` outlives it.
std::unique_ptr<net::Endpoint> make_rings(net::Host& host, std::uint32_t epoch, std::chrono::nanoseconds timeout);

}  // namespace weft::comm::internal
