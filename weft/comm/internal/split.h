// The groups of the two levels, and the engine that uses both.
#pragma once

#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/linked_transports.h"

namespace weft::comm::internal {

struct SplitOptions {
  std::chrono::milliseconds timeout;  // of each wait for a peer
  Plans plans = {};                   // for what goes between hosts
};

// Collective over all ranks of a group over several hosts: `host` joins those of this host,
// numbered by map.local, `endpoint` all of them. The engine's split() is made with it.
std::unique_ptr<Engine> make_split_engine(std::shared_ptr<net::Host> host,
                                          std::shared_ptr<net::Endpoint> endpoint,
                                          const HostMap& map, const SplitOptions& options);

}  // namespace weft::comm::internal
