// Chooses and makes the transports of a group.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>

#include "weft/comm/backend.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/meeting.h"

namespace weft::comm::internal {

// Collective over the participants. Throws as make_backend() does.
//
//   one rank          no transport
//   all on one host   shared memory
//   several hosts     TCP, or MPI if the rendezvous used MPI; shared memory within each host
std::unique_ptr<Engine> make_engine(const Forming& forming, const BackendOptions& options);

// This host's address on the route to `host`, which peers on other hosts can use. Throws
// kUnavailable if there is no such route.
std::string address_towards(const std::string& host);

// Messages between the ranks of a host, through shared memory. Collective. `host` outlives it.
// `check` is that of ShmOptions.
std::unique_ptr<net::Endpoint> make_rings(net::Host& host, std::uint32_t epoch,
                                          std::chrono::nanoseconds timeout,
                                          std::function<void(const char* operation)> check);

}  // namespace weft::comm::internal
