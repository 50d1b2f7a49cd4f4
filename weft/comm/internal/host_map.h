// Which ranks of a group share a host.
#pragma once

#include <string>
#include <vector>

namespace weft::comm::internal {

struct HostMap {
  int rank = 0, world = 1;  // of the whole group
  // Each host's ranks, ascending; hosts in the order of their first ranks.
  std::vector<std::vector<int>> hosts;
  int host = 0, local = 0;  // hosts[host][local] == rank

  // Made from every rank's host id, by rank.
  static HostMap of(const std::vector<std::string>& ids, int rank);

  int num_hosts() const { return static_cast<int>(hosts.size()); }
  const std::vector<int>& members() const { return hosts[static_cast<std::size_t>(host)]; }
  int size_of(int h) const { return static_cast<int>(hosts[static_cast<std::size_t>(h)].size()); }
  int local_world() const { return size_of(host); }
  // The host of a rank of the group.
  int host_of(int peer) const;
  // Ranks of the smallest host.
  int smallest() const;
  // True if there are several hosts and at least one has several ranks, so that the two levels
  // differ.
  bool two_levels() const { return num_hosts() > 1 && num_hosts() < world; }
  // True if every host has 2^k consecutive ranks. Then the balanced tree over all ranks consists of
  // a tree over each host and a tree over the hosts.
  bool is_balanced() const;
};

}  // namespace weft::comm::internal
