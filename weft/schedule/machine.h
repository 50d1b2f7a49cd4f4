// What a machine is made of, as Linux tells it: processors, NUMA nodes, caches, network interfaces;
// and the topology of ranks on such machines.
//
// Everything comes from /sys (what hwloc reads too), so there is nothing to install; what a system
// does not tell is left out, not guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/schedule/topology.h"

namespace weft::schedule {

// Processors (as the kernel numbers them) that have something in common.
struct NumaNode {
  int id = 0;
  std::int64_t bytes = 0;  // of memory
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
  std::optional<double> bandwidth;  // bytes/s, where the driver knows it
};

struct Machine {
  std::vector<int> processors;        // online
  int cores = 0, sockets = 0;         // processors may be several a core
  std::vector<NumaNode> numa_nodes;   // by id
  std::vector<Cache> caches;          // data and unified ones, by level and first processor
  std::vector<Interface> interfaces;  // without loopback, by name

  // The one that has all of these processors; nullopt where none has, or where it is not told.
  std::optional<int> socket_of(const std::vector<int>& processors) const;
  std::optional<int> numa_node_of(const std::vector<int>& processors) const;
  // A number for the last-level cache, its first processor.
  std::optional<int> cache_of(const std::vector<int>& processors) const;

  std::vector<int> socket_by_processor;  // -1: not told; by processor number
};

// This machine; `sys` stands for /sys. Missing files are missing facts, never errors.
Machine find_machine(const std::string& sys = "/sys");

// "0-3,8" -> 0 1 2 3 8; what is not such a list gives what could be read.
std::vector<int> parse_processors(std::string_view list);

// Where a rank is: its host (any name) and the parts of it that it is bound to, -1 where it may run
// in several.
struct Place {
  std::string host;
  int socket = -1, numa = -1, cache = -1;
};
// Ranks by place, with default links. A level is there where it says something: where its groups
// are neither those of the level outside it nor single ranks. Ranks that are not bound count as
// bound to a part of their own.
Topology topology_of(const std::vector<Place>& places);

}  // namespace weft::schedule
