// Describes a machine as Linux reports it: processors, NUMA nodes, caches and network interfaces.
// Also makes the topology of ranks on such machines.
//
// Everything is read from /sys, as hwloc does, so nothing has to be installed. A fact that the
// system does not report is left out, not guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/schedule/topology.h"

namespace weft::schedule {

// A memory node or a cache, with the processors that share it (numbered as in the kernel).
struct NumaNode {
  int id = 0;
  std::int64_t bytes = 0;  // Size of its memory.
  std::vector<int> processors;
};
struct Cache {
  int level = 1;
  std::int64_t bytes = 0;
  std::vector<int> processors;
};
struct Interface {
  std::string name;
  bool up = false;
  std::optional<double> bandwidth;  // Bytes/s; nullopt if the driver does not report it.
};

struct Machine {
  std::vector<int> processors;        // Online processors.
  int cores = 0, sockets = 0;         // A core may have several processors.
  std::vector<NumaNode> numa_nodes;   // Sorted by id.
  std::vector<Cache> caches;          // Data and unified caches, by level and first processor.
  std::vector<Interface> interfaces;  // Sorted by name, without loopback.

  // The socket or NUMA node that has all of these processors. nullopt if none has all of them, or
  // if the system does not report it.
  std::optional<int> socket_of(const std::vector<int>& processors) const;
  std::optional<int> numa_node_of(const std::vector<int>& processors) const;
  // The last-level cache that has all of these processors, identified by its first processor.
  std::optional<int> cache_of(const std::vector<int>& processors) const;

  std::vector<int> socket_by_processor;  // By processor number; -1: not reported.
};

// Reads this machine. Tests replace /sys by `sys`. A missing file is a missing fact, never an
// error.
Machine find_machine(const std::string& sys = "/sys");

// Numbers of the processors that this process may use, ascending. Empty if the system does not say.
std::vector<int> usable_processors();

// Parses a list of processors: "0-3,8" gives 0 1 2 3 8. An invalid list gives the numbers before
// the error.
std::vector<int> parse_processors(std::string_view list);

// Where a rank runs: its host (any name) and the parts of the host to which it is bound. -1: the
// rank may run in several parts.
struct Place {
  std::string host;
  int socket = -1, numa = -1, cache = -1;
};
// Topology of ranks at these places, with default links. A level is included only if its groups
// differ from those of the level outside it and are not all single ranks. The unbound ranks of a
// group count as bound to one further part.
Topology topology_of(const std::vector<Place>& places);

}  // namespace weft::schedule
