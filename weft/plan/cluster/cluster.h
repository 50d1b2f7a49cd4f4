// Cluster: accelerators or processors on nodes, and the links between them. All nodes may be alike,
// or differ in accelerator, number of devices and links.
//
//   const Cluster selene = cluster_of_system("Selene DGX A100", 64);
//   const Cluster mine = load_cluster("clusters/dgx-a100.toml");
//
// Ranks are placed on nodes in order: node 0 has the first ranks. Bandwidths are bytes/s in one
// direction, latencies seconds. A Cluster is a value; any thread may read it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/plan/model/blocks.h"

namespace weft::plan {

inline constexpr double kGiB = 1073741824;

// Generation of hardware, by which calibrated constants are looked up.
enum class Generation : std::uint8_t {
  kOther,
  kPascal,
  kVolta,
  kAmpere,
  kHopper,
  kBlackwell,
  kTpu,
  kCpu
};
const char* to_string(Generation generation);

// Measured time of one matrix product (weft plan profile).
struct MatmulRate {
  double m = 0, n = 0, k = 0;
  double seconds = 0;
  bool operator==(const MatmulRate&) const = default;
};

struct Accelerator {
  std::string name;
  Generation generation = Generation::kOther;
  // Peak FLOP/s by Precision. 0: not supported; peak() then takes the next wider one.
  std::array<double, 6> peaks{};
  double achievable = 0;  // FLOP/s of the best 16-bit matrix product that was measured. 0: unknown.
  double memory = 0;      // Bytes.
  double bandwidth = 0;   // Bytes/s of its memory.
  int units = 1;          // Streaming multiprocessors, compute units, cores: what runs a tile.
  double link = 0;        // Bytes/s to its neighbors on the node.
  double watts = 0;       // Of one device under load. 0: unknown.
  double price = 0;       // Dollars an hour for one device. 0: unknown.
  std::vector<MatmulRate> rates;  // Measured products, if any.
  bool operator==(const Accelerator&) const = default;
};
double peak(const Accelerator& accelerator, Precision precision);

// How the devices of a node are connected.
enum class Wiring : std::uint8_t {
  kSwitch,    // Each device reaches every other at its full rate (NVSwitch, fully connected).
  kCubeMesh,  // DGX-1's hybrid cube mesh: 6 NVLinks of each device, pairs with 1, 2 or no link.
  kHost,      // Through PCIe and the host.
  kShared,    // One memory: threads and processes of one machine.
  kTorus      // Rings through neighbors (TPU).
};

struct Link {
  double bandwidth = 0;  // Bytes/s in one direction.
  double latency = 0;    // Seconds.
  // Share of the bandwidth that large collectives reach: 0.78 NVLink, 0.96 RDMA, 0.8 TCP
  // (calibrated.h).
  double share = 1;
  bool operator==(const Link&) const = default;
};

struct NodeType {
  int accelerator = 0;  // Index of Cluster::accelerators.
  int devices = 1;
  int count = 1;       // Nodes of this type.
  int processors = 0;  // Devices of a node that can compute at once. 0: all.
  Wiring wiring = Wiring::kSwitch;
  Link intra;  // Of one device to its neighbors.
  Link inter;  // Of the whole node to other nodes, over all its network cards.
  bool operator==(const NodeType&) const = default;
};

enum class Library : std::uint8_t { kNccl, kWeft };

struct Cluster {
  std::string name;
  std::string source;
  std::string software;  // Default software of scenarios on this cluster; empty: none.
  std::string machine;   // Identity of the machine that was profiled; empty: no profile.
  Library library = Library::kNccl;
  std::vector<Accelerator> accelerators;
  std::vector<NodeType> nodes;  // In the order of ranks.
  bool operator==(const Cluster&) const = default;
};

int devices(const Cluster& cluster);
int num_nodes(const Cluster& cluster);
// Node type and number of the node of a rank. Throws Error(kInvalidArgument) for a rank outside.
struct DevicePlace {
  int type = 0;
  int node = 0;
  int local = 0;  // Number of the device on its node.
};
DevicePlace device_place(const Cluster& cluster, int rank);
const Accelerator& accelerator_of(const Cluster& cluster, int rank);
// True if all nodes have the same accelerators and links.
bool is_uniform(const Cluster& cluster);

// The same cluster with `nodes` nodes, of its first type (or cut off after that many). Throws
// Error(kInvalidArgument) for fewer than 1 or more than a million devices.
Cluster with_nodes(Cluster cluster, int nodes);

// One line: "8 nodes of 8 A100 SXM 80GB".
std::string describe(const Cluster& cluster);

// Throws Error(kBadConfig), naming the field, for missing, negative, infinite or absurd values.
void check(const Cluster& cluster, const std::string& source);

}  // namespace weft::plan
