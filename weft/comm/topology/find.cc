#include "weft/comm/topology/find.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>

#include "weft/base/deadline.h"
#include "weft/base/text/variables.h"
#include "weft/net/memory/host.h"
#include "weft/schedule/machine.h"

namespace weft::comm::topology {
namespace {

using schedule::Link;
using schedule::Place;
using schedule::Topology;
using Clock = std::chrono::steady_clock;

constexpr int kTag = 0x70b0;
constexpr int kWarmUps = 2, kLargeTrips = 4;
constexpr std::int64_t kPlaceBytes = 256;

std::string own_place() {
  const auto machine = schedule::find_machine();
  const auto processors = schedule::usable_processors();
  std::ostringstream text;
  text << machine.socket_of(processors).value_or(-1) << ' '
       << machine.numa_node_of(processors).value_or(-1) << ' '
       << machine.cache_of(processors).value_or(-1) << ' ' << net::host_id() << '/'
       << variable("WEFT_HOST_ID");
  return text.str().substr(0, static_cast<std::size_t>(kPlaceBytes) - 1);
}

std::vector<Place> places_of(const Group& group) {
  at::Tensor mine = at::zeros({kPlaceBytes}, at::kByte),
             all = at::zeros({group.size(), kPlaceBytes}, at::kByte);
  const std::string text = own_place();
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  group.all_gather(all, mine);
  std::vector<Place> places;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::istringstream in(static_cast<const char*>(all[rank].data_ptr()));
    Place place;
    in >> place.socket >> place.numa >> place.cache >> place.host;
    places.push_back(std::move(place));
  }
  return places;
}

// Returns two ranks in the same group of a level but in different groups of the next level. nullopt
// if there are none.
std::optional<std::pair<int, int>> pair_over(const Topology& topology, int level) {
  for (int a = 0; a < topology.world(); ++a) {
    for (int b = a + 1; b < topology.world(); ++b) {
      if (topology.level_of(a, b) == level) return std::pair(a, b);
    }
  }
  return std::nullopt;
}

// Seconds of the fastest round trip, divided by two.
double one_way(const Group& group, std::pair<int, int> pair, at::Tensor& message, int trips) {
  double best = std::numeric_limits<double>::infinity();
  for (int trip = 0; trip < trips + kWarmUps; ++trip) {
    const auto start = Clock::now();
    if (group.rank() == pair.first) {
      group.send(message, pair.second, kTag);
      group.recv(message, pair.second, kTag);
    } else {
      group.recv(message, pair.first, kTag);
      group.send(message, pair.first, kTag);
    }
    if (trip >= kWarmUps) best = std::min(best, seconds_since(start) / 2);
  }
  return best;
}

Link probe(const Group& group, std::pair<int, int> pair, const Link& known,
           const FindOptions& options) {
  at::Tensor result = at::tensor({known.latency, known.bandwidth}, at::kDouble);
  if (group.rank() == pair.first || group.rank() == pair.second) {
    at::Tensor small = at::zeros({8}, at::kByte),
               large = at::zeros({static_cast<std::int64_t>(options.large_bytes)}, at::kByte);
    const double latency = std::max(one_way(group, pair, small, options.round_trips), 1e-9);
    const double moved = std::max(one_way(group, pair, large, kLargeTrips) - latency, 1e-9);
    if (group.rank() == pair.first)
      result.copy_(
          at::tensor({latency, static_cast<double>(options.large_bytes) / moved}, at::kDouble));
  }
  group.broadcast(result, pair.first);
  return {result[0].item<double>(), result[1].item<double>(), known.reduction};
}

}  // namespace

Topology find_topology(const Group& group, const FindOptions& options) {
  WEFT_REQUIRE(options.round_trips >= 1 && options.large_bytes >= 1,
               "find_topology: a probe needs at least one round trip and one byte");
  const Topology found = schedule::topology_of(places_of(group));
  if (!options.probe) return found;
  std::vector<schedule::Level> levels;
  for (int at = 0; at < found.num_levels(); ++at) {
    levels.push_back(found.level(at));
    if (const auto pair = pair_over(found, at))
      levels.back().link = probe(group, *pair, levels.back().link, options);
  }
  return {found.world(), std::move(levels)};
}

}  // namespace weft::comm::topology
