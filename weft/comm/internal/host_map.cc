#include "weft/comm/internal/host_map.h"

#include <algorithm>
#include <bit>

namespace weft::comm::internal {

HostMap HostMap::of(const std::vector<std::string>& ids, int rank) {
  HostMap map;
  map.rank = rank;
  map.world = static_cast<int>(ids.size());
  std::vector<std::string> known;
  for (int peer = 0; peer < map.world; ++peer) {
    const std::string& id = ids[static_cast<std::size_t>(peer)];
    const auto found = std::find(known.begin(), known.end(), id);
    const auto at = static_cast<std::size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(id);
      map.hosts.emplace_back();
    }
    if (peer == rank) {
      map.host = static_cast<int>(at);
      map.local = static_cast<int>(map.hosts[at].size());
    }
    map.hosts[at].push_back(peer);
  }
  return map;
}

int HostMap::host_of(int peer) const {
  const auto has = [&](const std::vector<int>& ranks) {
    return std::binary_search(ranks.begin(), ranks.end(), peer);
  };
  return static_cast<int>(std::find_if(hosts.begin(), hosts.end(), has) - hosts.begin());
}

bool HostMap::is_balanced() const {
  const int each = size_of(0);
  if (!std::has_single_bit(static_cast<unsigned>(each))) return false;
  return std::all_of(hosts.begin(), hosts.end(), [&](const std::vector<int>& ranks) {
    return static_cast<int>(ranks.size()) == each && ranks.front() % each == 0 &&
           ranks.back() - ranks.front() == each - 1;
  });
}

int HostMap::smallest() const {
  std::size_t least = hosts[0].size();
  for (const auto& ranks : hosts) least = std::min(least, ranks.size());
  return static_cast<int>(least);
}

}  // namespace weft::comm::internal
