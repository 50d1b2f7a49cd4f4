#include "weft/plan/cost/collectives.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "weft/base/error.h"
#include "weft/plan/cost/calibrated.h"
#include "weft/plan/cost/internal/weft_collectives.h"

namespace weft::plan {
namespace {

// NVLinks between the GPUs of a DGX-1 with V100 (nvidia-smi topo -m): 0, 1 or 2. 25 GB/s each.
constexpr int kCubeMesh[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                                 {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
                                 {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                 {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
constexpr int kLinksOfDevice = 6;
constexpr double kThroughHost = 9e9;  // Bytes/s between GPUs without a link: PCIe and the host.

// Share of the bandwidth that messages between two nodes reach.
constexpr double kMessageShare = 0.9;

enum Protocol { kLL, kLL128, kSimple };
enum NcclAlgorithm { kTree, kRing };

// Bandwidth of a protocol in a ring, relative to Simple: flags take half of LL's lines and 8 of 128
// bytes of LL128's. LL moves a quarter of the bandwidth (tuning.cc).
double ring_share(int protocol) { return protocol == kLL ? 0.25 : protocol == kLL128 ? 0.92 : 1; }

// The same in a tree, relative to Simple in a ring (tuning.cc).
double tree_share(int protocol, double bytes, int nodes) {
  constexpr double kNode = 0.9, kNodes = 0.78, kLines = 1 / 3.8, kLongLinesOfNode = 7.0 / 9,
                   kLongLines = 0.915;
  const double share = protocol == kSimple ? 1
                       : protocol == kLL   ? kLines
                       : nodes == 1        ? kLongLinesOfNode
                                           : kLongLines;
  const auto& by_size = nccl_tree_shares()[static_cast<std::size_t>(protocol)];
  const auto size = static_cast<std::size_t>(std::log2(std::max(bytes, 64.0) / 64));
  return (nodes == 1 ? kNode : kNodes) * share * (size < by_size.size() ? by_size[size] : 1);
}

struct Steps {
  double intra, inter;
};

// Reductions in NVSwitches (nccl_collectives). Shares of a link's bandwidth: one value explains
// groups of 5 to 8 ranks. kFillSwitch: time until all channels are full; half of it at kFillBytes.
constexpr double kSwitchedHopper = 0.68, kSwitchedBlackwell = 0.57;
constexpr double kSwitchLatency = 10e-6, kFillSwitch = 60e-6, kFillBytes = 10e6;

// Launch of a collective, and the meeting of its ranks (nccl_collectives: 40 us for 32 KiB, of
// which NCCL's own model explains 10).
constexpr double kLaunchCollective = 33e-6;
// Rings of large messages wait longer in each step (tuning.cc: "plateau effect of ring"):
// all-reduces over several nodes from 4 KiB for each rank on, others from 1 MB on.
constexpr double kPlateau = 1.9, kPlateauBytes = 1e6, kPlateauBytesOfNodes = 4096;
constexpr double kInfiniband = 9.6e-6;  // Seconds of a hop.
// Steps of LL inside a node, in a group that spans several (tuning.cc).
constexpr double kLinesBehindNetwork = 1.8;

double nccl_latency(int algorithm, int protocol, const Steps& steps, const GroupShape& g) {
  const NcclLatencies& c = nccl_latencies();
  const auto a = static_cast<std::size_t>(algorithm), p = static_cast<std::size_t>(protocol);
  const double inside = (g.pci ? c.pci : c.nvlink)[a][p],
               slower = g.nodes > 1 && protocol == kLL ? kLinesBehindNetwork : 1;
  // The table's networks are InfiniBand.
  const double network = g.nodes > 1 ? std::max(1.0, g.inter.latency / kInfiniband) : 1;
  return 1e-6 *
         (c.base[a][p] + steps.intra * slower * inside + steps.inter * network * c.net[a][p]);
}

double inter_bandwidth(const GroupShape& g) {
  return g.inter.bandwidth * g.inter.share / std::max(1, g.sharing);
}

double bus_bandwidth(const GroupShape& g) {
  double bus = g.per_node > 1 ? g.intra : std::numeric_limits<double>::infinity();
  if (g.nodes > 1) bus = std::min(bus, inter_bandwidth(g));
  return bus;
}

// Rounds of a ring: n - 1, twice for an all-reduce. As many pass between nodes as there are further
// nodes.
double nccl_ring(ExchangeKind kind, double bytes, const GroupShape& g) {
  const bool whole = kind == ExchangeKind::kAllReduce;
  const double n = g.ranks, passes = whole ? 2 : 1, rounds = passes * (n - 1),
               inter = std::min(rounds, passes * (g.nodes - 1));
  const double wire = rounds / n * bytes / bus_bandwidth(g),
               plateau = g.nodes > 1 && whole ? kPlateauBytesOfNodes : kPlateauBytes;
  double best = std::numeric_limits<double>::infinity();
  for (const int protocol : {kLL, kLL128, kSimple}) {
    if (protocol == kLL128 && g.pci) continue;
    const double slower = protocol == kSimple && bytes / n >= plateau ? kPlateau : 1;
    const Steps steps = {slower * (rounds - inter), slower * inter};
    best = std::min(best, nccl_latency(kRing, protocol, steps, g) + wire / ring_share(protocol));
  }
  return best;
}

// Trees over nodes reach more than the tuning model expects: from kTreeBytes on, parts overlap and
// fill the network. NCCL changes to rings between 1 and 2 MB for each rank. (nccl_collectives:
// 69 to 98 of 98 GB/s at 8 to 32 MiB on four nodes, and less again at 64 MiB.)
constexpr double kTreeBytes = 8e6, kTreeBytesOfRank = 1.5e6;

double nccl_tree(double bytes, const GroupShape& g) {
  const double n = g.ranks;
  const Steps steps = {2 * (n / g.nodes - 1), 2 * std::floor(std::log2(g.nodes))};
  // Two binary trees over the nodes, each of half the array: n - 1 edges of each tree, up and down.
  const double over_nodes = g.nodes > 1 ? static_cast<double>(g.nodes - 1) / g.nodes : 1;
  const double wire = 2 * over_nodes * bytes / bus_bandwidth(g);
  const bool fills = g.nodes > 1 && bytes >= kTreeBytes && bytes < kTreeBytesOfRank * n;
  double best = std::numeric_limits<double>::infinity();
  for (const int protocol : {kLL, kLL128, kSimple}) {
    if (protocol == kLL128 && g.pci) continue;
    double share = tree_share(protocol, bytes, g.nodes);
    if (fills && protocol != kLL) share = ring_share(protocol);
    best = std::min(best, nccl_latency(kTree, protocol, steps, g) + wire / share);
  }
  return best;
}

// A rank reads 1 / n of the array, which the switch adds up, and writes it to all through the
// switch. Its link carries the array once, and 1 / n of it again, in each direction.
double nccl_switched(double bytes, const GroupShape& g) {
  const double wire = bytes * (1 + 1.0 / g.ranks) / g.switched;
  return kSwitchLatency + kFillSwitch * bytes / (bytes + kFillBytes) + wire;
}

// Each rank sends a block to every other one: (n - 1) / n of the payload, most of it to other nodes
// if the group spans several.
double all_to_all(double bytes, const GroupShape& g) {
  const double n = g.ranks, latency = 10e-6 + (n - 1) * g.latency;
  const double inside = bytes * std::max(0, g.per_node - 1) / n / std::max(g.intra, 1.0);
  if (g.nodes == 1) return latency + inside;
  const double outside = bytes * (n - g.per_node) / n;
  return latency + std::max(inside, outside * g.per_node / inter_bandwidth(g));
}

double nccl_seconds(ExchangeKind kind, double bytes, const GroupShape& g) {
  if (kind == ExchangeKind::kAllToAll) return all_to_all(bytes, g);
  double best = nccl_ring(kind, bytes, g);
  if (kind == ExchangeKind::kAllReduce) {
    best = std::min(best, nccl_tree(bytes, g));
    if (g.switched > 0 && g.nodes == 1) best = std::min(best, nccl_switched(bytes, g));
  }
  return kLaunchCollective + best;
}

}  // namespace

double switch_bandwidth(const Cluster& cluster, const NodeType& type) {
  if (type.wiring != Wiring::kSwitch) return 0;
  switch (cluster.accelerators[static_cast<std::size_t>(type.accelerator)].generation) {
    case Generation::kHopper: return kSwitchedHopper * type.intra.bandwidth;
    case Generation::kBlackwell: return kSwitchedBlackwell * type.intra.bandwidth;
    default: return 0;
  }
}

double ring_bandwidth(const NodeType& type, const std::vector<int>& locals) {
  const double full = type.intra.bandwidth * type.intra.share;
  if (type.wiring != Wiring::kCubeMesh || locals.size() < 2) return full;
  // A ring needs links on both sides of each device. The device with the fewest links to the others
  // limits it.
  const double one = type.intra.bandwidth / kLinksOfDevice * type.intra.share;
  int fewest = kLinksOfDevice;
  for (const int a : locals) {
    int links = 0;
    for (const int b : locals) links += kCubeMesh[a % 8][b % 8];
    fewest = std::min(fewest, links);
  }
  if (fewest == 0 || (locals.size() > 2 && fewest < 2)) return kThroughHost;
  return fewest * one;
}

GroupShape group_shape(const Cluster& cluster, const std::vector<int>& ranks, int sharing) {
  GroupShape g;
  g.ranks = static_cast<int>(ranks.size());
  g.sharing = std::max(1, sharing);
  g.library = cluster.library;
  std::map<int, std::vector<int>> locals;  // by node
  std::map<int, int> types;
  for (const int rank : ranks) {
    const DevicePlace place = device_place(cluster, rank);
    locals[place.node].push_back(place.local);
    types[place.node] = place.type;
  }
  g.nodes = static_cast<int>(locals.size());
  g.intra = std::numeric_limits<double>::infinity();
  g.inter.bandwidth = std::numeric_limits<double>::infinity();
  for (const auto& [node, here] : locals) {
    const NodeType& type = cluster.nodes[static_cast<std::size_t>(types[node])];
    g.per_node = std::max(g.per_node, static_cast<int>(here.size()));
    g.intra = std::min(g.intra, ring_bandwidth(type, here));
    const double switched = switch_bandwidth(cluster, type);
    g.switched = locals.size() == 1 ? switched : 0;
    if (type.inter.bandwidth * type.inter.share < g.inter.bandwidth * g.inter.share)
      g.inter = type.inter;
    g.pci = g.pci || type.wiring == Wiring::kHost;
    g.shared_memory = g.shared_memory || type.wiring == Wiring::kShared;
    g.latency = std::max(g.latency, type.intra.latency);
  }
  return g;
}

double collective_seconds(ExchangeKind kind, double bytes, const GroupShape& group) {
  if (group.ranks <= 1 || bytes <= 0) return 0;
  if (group.library == Library::kWeft) return internal::weft_seconds(kind, bytes, group);
  return nccl_seconds(kind, bytes, group);
}

// Tokens that have all their experts on few nodes are sent to these alone.
double dispatch_seconds(double bytes, double copies, const GroupShape& g) {
  if (g.ranks <= 1 || bytes <= 0) return 0;
  const double n = g.ranks, nodes = g.nodes, latency = 20e-6;
  const double inside = bytes * (n - 1) / n / std::max(g.intra, 1.0);
  if (g.nodes == 1) return latency + inside;
  // Expected number of other nodes that a token is sent to.
  const double met = (nodes - 1) * (1 - std::pow(1 - 1 / nodes, copies));
  const double outside = bytes / copies * met * g.per_node;
  return latency + std::max(inside, outside / inter_bandwidth(g));
}

double message_seconds(const Cluster& cluster, int from, int to, double bytes, int senders) {
  const DevicePlace a = device_place(cluster, from), b = device_place(cluster, to);
  const NodeType& type = cluster.nodes[static_cast<std::size_t>(a.type)];
  if (a.node == b.node) {
    const double bandwidth = type.wiring == Wiring::kCubeMesh
                                 ? ring_bandwidth(type, {a.local, b.local})
                                 : type.intra.bandwidth * std::min(1.0, type.intra.share * 1.15);
    return type.intra.latency + 5e-6 + bytes / bandwidth;
  }
  const NodeType& other = cluster.nodes[static_cast<std::size_t>(b.type)];
  const double bandwidth = kMessageShare * std::min(type.inter.bandwidth, other.inter.bandwidth);
  return type.inter.latency + 5e-6 + bytes * std::max(1, senders) / bandwidth;
}

}  // namespace weft::plan
