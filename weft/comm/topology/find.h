// The topology of a running group: where its ranks are, and what their links do.
#pragma once

#include "weft/comm/group.h"
#include "weft/schedule/topology.h"

namespace weft::comm::topology {

struct FindOptions {
  // Measures each level's link between two of its ranks by messages, some tens of milliseconds a
  // level on a link of 1 Gbit/s; otherwise links are the defaults. Reductions are not measured
  // here.
  bool probe = true;
  int round_trips = 20;  // of 8 bytes, for the latency: half of the fastest
  std::size_t large_bytes = std::size_t{1}
                            << 20;  // a message for the bandwidth: the fastest of four round trips
};

// Collective; all ranks get the same. Hosts are those that WEFT_HOST_ID and the system tell apart;
// parts of a host (sockets, NUMA nodes, caches) count where ranks are bound to processors. It can
// be kept as a file: to_toml(), Topology::load(). Errors are those of the group's operations.
schedule::Topology find_topology(const Group& group, const FindOptions& options = {});

}  // namespace weft::comm::topology
