#include "weft/train/planner/internal/resized_cluster.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/error.h"

namespace weft::train::internal {
namespace {

struct Place {
  std::size_t type = 0;  // of the cluster that was measured
  int ranks = 0;
};

std::vector<Place> hosts_of(const plan::Cluster& cluster) {
  std::vector<Place> hosts;
  for (std::size_t type = 0; type < cluster.nodes.size(); ++type) {
    const plan::NodeType& node = cluster.nodes[type];
    hosts.insert(hosts.end(), static_cast<std::size_t>(node.count), {type, node.devices});
  }
  return hosts;
}

// The same hosts with `ranks` ranks; some may have none.
std::vector<Place> resized(std::vector<Place> hosts, int ranks) {
  WEFT_REQUIRE(ranks > 0, "a cluster of no ranks");
  int now = 0;
  for (const Place& host : hosts) now += host.ranks;
  const auto fewer = [](const Place& a, const Place& b) { return a.ranks < b.ranks; };
  for (; now > ranks; --now) --std::max_element(hosts.rbegin(), hosts.rend(), fewer)->ranks;
  for (; now < ranks; ++now) ++std::min_element(hosts.rbegin(), hosts.rend(), fewer)->ranks;
  return hosts;
}

}  // namespace

void add_node_type(plan::Cluster& cluster, plan::NodeType node, plan::Accelerator processor) {
  node.accelerator = static_cast<int>(cluster.accelerators.size());
  node.count = 0;
  if (node.accelerator > 0) processor.name += " " + std::to_string(node.accelerator + 1);
  cluster.nodes.push_back(node);
  cluster.accelerators.push_back(std::move(processor));
}

plan::Cluster with_ranks(const plan::Cluster& cluster, int ranks) {
  const std::vector<Place> hosts = resized(hosts_of(cluster), ranks);
  plan::Cluster result = cluster;
  result.nodes.clear();
  result.accelerators.clear();
  const Place* last = nullptr;
  for (const Place& host : hosts) {
    if (host.ranks == 0) continue;
    if (last == nullptr || last->type != host.type || last->ranks != host.ranks) {
      plan::NodeType node = cluster.nodes[host.type];
      plan::Accelerator processor =
          cluster.accelerators[static_cast<std::size_t>(node.accelerator)];
      processor.memory *= static_cast<double>(node.devices) / host.ranks;
      node.devices = host.ranks;
      add_node_type(result, node, std::move(processor));
    }
    ++result.nodes.back().count;
    last = &host;
  }
  return result;
}

std::vector<double> slowness_with(const plan::Cluster& cluster, const std::vector<double>& slowness,
                                  int ranks) {
  if (slowness.empty()) return {};
  const std::vector<Place> before = hosts_of(cluster), after = resized(before, ranks);
  std::vector<double> all;
  auto first = slowness.begin();
  for (std::size_t host = 0; host < before.size(); ++host) {
    const auto end = first + before[host].ranks;
    const double mean = std::accumulate(first, end, 0.0) / before[host].ranks;
    all.insert(all.end(), static_cast<std::size_t>(after[host].ranks), mean);
    first = end;
  }
  return all;
}

}  // namespace weft::train::internal
