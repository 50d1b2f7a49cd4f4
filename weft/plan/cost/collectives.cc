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
  constexpr double kAll = 0.9, kLines = 1 / 3.8, kLongLinesOfNode = 7.0 / 9, kLongLines = 0.915;
  const double share = protocol == kSimple ? 1
                       : protocol == kLL   ? kLines
                       : nodes == 1        ? kLongLinesOfNode
                                           : kLongLines;
  const auto& by_size = nccl_tree_shares()[static_cast<std::size_t>(protocol)];
  const auto size = static_cast<std::size_t>(std::log2(std::max(bytes, 64.0) / 64));
  return kAll * share * (size < by_size.size() ? by_size[size] : 1);
}

struct Steps {
  double intra, inter;
};

// Launch of a collective, and the meeting of its ranks (nccl_collectives: 40 us for 32 KiB, of
// which NCCL's own model explains 10).
constexpr double kLaunchCollective = 20e-6;
// Rings of large messages wait longer in each step (tuning.cc: "plateau effect of ring"):
// all-reduces over several nodes from 4 KiB for each rank on, others from 1 MB on.
constexpr double kPlateau = 1.9, kPlateauBytes = 1e6, kPlateauBytesOfNodes = 4096;
// Steps of LL inside a node, in a group that spans several (tuning.cc).
constexpr double kLinesBehindNetwork = 1.8;

double nccl_latency(int algorithm, int protocol, const Steps& steps, const GroupShape& g) {
  const NcclLatencies& c = nccl_latencies();
  const auto a = static_cast<std::size_t>(algorithm), p = static_cast<std::size_t>(protocol);
  const double inside = (g.pci ? c.pci : c.nvlink)[a][p],
               slower = g.nodes > 1 && protocol == kLL ? kLinesBehindNetwork : 1;
  return 1e-6 * (c.base[a][p] + steps.intra * slower * inside + steps.inter * c.net[a][p]);
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

double nccl_tree(double bytes, const GroupShape& g) {
  const double n = g.ranks;
  const Steps steps = {2 * (n / g.nodes - 1), 2 * std::floor(std::log2(g.nodes))};
  const double wire = 2 * bytes / bus_bandwidth(g);
  double best = std::numeric_limits<double>::infinity();
  for (const int protocol : {kLL, kLL128, kSimple}) {
    if (protocol == kLL128 && g.pci) continue;
    best = std::min(best, nccl_latency(kTree, protocol, steps, g) +
                              wire / tree_share(protocol, bytes, g.nodes));
  }
  return best;
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
  const double ring = nccl_ring(kind, bytes, g);
  return kLaunchCollective +
         (kind == ExchangeKind::kAllReduce ? std::min(ring, nccl_tree(bytes, g)) : ring);
}

}  // namespace

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
