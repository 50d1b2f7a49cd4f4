// The groups of the two levels (host, and between hosts), and the engine that uses both.
#pragma once

#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/linked_transports.h"

namespace weft::comm::internal {

struct SplitOptions {
  std::chrono::milliseconds timeout;  // of each wait for a peer
  Tuning tuning = {};                 // for traffic between hosts
  std::vector<int> job_ranks = {};    // as in BackendOptions
};

// Collective over all ranks of a group over several hosts. `host` connects the ranks of this host,
// numbered by map.local; `endpoint` connects all ranks. Also makes the engine's split().
std::unique_ptr<Engine> make_split_engine(std::shared_ptr<net::Host> host,
                                          std::shared_ptr<net::Endpoint> endpoint,
                                          const HostMap& map, const SplitOptions& options);

}  // namespace weft::comm::internal
