#include "weft/train/internal/resized_cluster.h"

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

}  // namespace

void add_node_type(plan::Cluster& cluster, plan::NodeType node, plan::Accelerator processor) {
  node.accelerator = static_cast<int>(cluster.accelerators.size());
  node.count = 0;
  if (node.accelerator > 0) processor.name += " " + std::to_string(node.accelerator + 1);
  cluster.nodes.push_back(node);
  cluster.accelerators.push_back(std::move(processor));
}

plan::Cluster with_ranks(const plan::Cluster& cluster, int ranks) {
  WEFT_REQUIRE(ranks > 0, "a cluster of no ranks");
  std::vector<Place> hosts;
  int now = 0;
  for (std::size_t type = 0; type < cluster.nodes.size(); ++type) {
    const plan::NodeType& node = cluster.nodes[type];
    hosts.insert(hosts.end(), static_cast<std::size_t>(node.count), {type, node.devices});
    now += node.count * node.devices;
  }
  const auto fewer = [](const Place& a, const Place& b) { return a.ranks < b.ranks; };
  for (; now > ranks; --now) --std::max_element(hosts.rbegin(), hosts.rend(), fewer)->ranks;
  for (; now < ranks; ++now) ++std::min_element(hosts.rbegin(), hosts.rend(), fewer)->ranks;

  plan::Cluster resized = cluster;
  resized.nodes.clear();
  resized.accelerators.clear();
  const Place* last = nullptr;
  for (const Place& host : hosts) {
    if (host.ranks == 0) continue;
    if (last == nullptr || last->type != host.type || last->ranks != host.ranks) {
      plan::NodeType node = cluster.nodes[host.type];
      plan::Accelerator processor =
          cluster.accelerators[static_cast<std::size_t>(node.accelerator)];
      processor.memory *= static_cast<double>(node.devices) / host.ranks;
      node.devices = host.ranks;
      add_node_type(resized, node, std::move(processor));
    }
    ++resized.nodes.back().count;
    last = &host;
  }
  return resized;
}

}  // namespace weft::train::internal
