#include "weft/plan/cluster/cluster.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

constexpr int kMaxDevices = 1'000'000;

[[noreturn]] void fail_check(const std::string& source, const std::string& what) {
  throw Error(Errc::kBadConfig, source + ": " + what);
}

struct Bounds {
  double low, high;
};

void check_range(const std::string& source, const std::string& what, double value,
                 const Bounds& bounds) {
  if (std::isfinite(value) && value >= bounds.low && value <= bounds.high) return;
  fail_check(source,
             what + formatted(" is %g; use a value from %g to %g", value, bounds.low, bounds.high));
}

void check_accelerator(const Accelerator& a, const std::string& source) {
  if (a.name.empty()) fail_check(source, "an accelerator has no name");
  const auto of = [&](const char* what) { return what + std::string(" of ") + a.name; };
  double best = 0;
  for (const double peak : a.peaks) {
    check_range(source, of("peak FLOP/s"), peak, {0, 1e18});
    best = std::max(best, peak);
  }
  if (best <= 0 && a.rates.empty())
    fail_check(source, a.name + " has no peak FLOP/s; give one of fp32_tflops … fp8_tflops");
  if (best > 0) check_range(source, of("peak FLOP/s"), best, {1e8, 1e18});
  check_range(source, of("memory (bytes)"), a.memory, {1e6, 1e15});
  check_range(source, of("memory bandwidth (bytes/s)"), a.bandwidth, {1e6, 1e15});
  check_range(source, of("units"), a.units, {1, 1e6});
  check_range(source, of("watts"), a.watts, {0, 1e6});
  check_range(source, of("price"), a.price, {0, 1e6});
  for (const MatmulRate& rate : a.rates) {
    if (!(rate.m >= 1 && rate.n >= 1 && rate.k >= 1 && rate.seconds > 0 &&
          std::isfinite(rate.m * rate.n * rate.k / rate.seconds)))
      fail_check(source,
                 "a measured matrix product of " + a.name + " has a size below 1 or no time");
  }
}

void check_link(const Link& link, const std::string& what, const std::string& source) {
  check_range(source, what + " (bytes/s)", link.bandwidth, {1e3, 1e15});
  check_range(source, what + " latency (s)", link.latency, {0, 10});
  check_range(source, what + " share", link.share, {0.001, 1});
}

}  // namespace

const char* to_string(Generation generation) {
  switch (generation) {
    case Generation::kOther: return "other";
    case Generation::kPascal: return "pascal";
    case Generation::kVolta: return "volta";
    case Generation::kAmpere: return "ampere";
    case Generation::kHopper: return "hopper";
    case Generation::kBlackwell: return "blackwell";
    case Generation::kTpu: return "tpu";
    case Generation::kCpu: return "cpu";
  }
  return "other";
}

double peak(const Accelerator& a, Precision precision) {
  const auto at = [&](Precision p) { return a.peaks[static_cast<std::size_t>(p)]; };
  if (at(precision) > 0) return at(precision);
  if (precision == Precision::kFp4) return peak(a, Precision::kFp8);
  // bf16 and fp16 run at the same rate; fp8 falls back to them, all others to fp32.
  const double half = std::max(at(Precision::kBf16), at(Precision::kFp16));
  if (precision != Precision::kFp32 && precision != Precision::kTf32 && half > 0) return half;
  if (at(Precision::kFp32) > 0) return at(Precision::kFp32);
  if (precision == Precision::kFp32 && at(Precision::kTf32) > 0) return at(Precision::kTf32);
  return half > 0 ? half / 2 : 0;
}

int devices(const Cluster& cluster) {
  int sum = 0;
  for (const NodeType& type : cluster.nodes) sum += type.devices * type.count;
  return sum;
}

int num_nodes(const Cluster& cluster) {
  int sum = 0;
  for (const NodeType& type : cluster.nodes) sum += type.count;
  return sum;
}

DevicePlace device_place(const Cluster& cluster, int rank) {
  int first = 0, node = 0;
  for (std::size_t t = 0; t < cluster.nodes.size(); ++t) {
    const NodeType& type = cluster.nodes[t];
    const int here = type.devices * type.count;
    if (rank >= 0 && rank < first + here) {
      return {static_cast<int>(t), node + (rank - first) / type.devices,
              (rank - first) % type.devices};
    }
    first += here;
    node += type.count;
  }
  throw Error(Errc::kInvalidArgument, "rank " + std::to_string(rank) + " is not one of the " +
                                          std::to_string(devices(cluster)) + " devices");
}

const Accelerator& accelerator_of(const Cluster& cluster, int rank) {
  const NodeType& type = cluster.nodes[static_cast<std::size_t>(device_place(cluster, rank).type)];
  return cluster.accelerators[static_cast<std::size_t>(type.accelerator)];
}

bool is_uniform(const Cluster& cluster) {
  return std::all_of(cluster.nodes.begin(), cluster.nodes.end(), [&](NodeType type) {
    type.count = cluster.nodes[0].count;
    return type == cluster.nodes[0];
  });
}

Cluster with_nodes(Cluster cluster, int nodes) {
  WEFT_REQUIRE(nodes >= 1, std::to_string(nodes) + " nodes; use at least 1");
  if (cluster.nodes.size() == 1) {
    WEFT_REQUIRE(static_cast<double>(nodes) * cluster.nodes[0].devices <= kMaxDevices,
                 "more than " + std::to_string(kMaxDevices) + " devices");
    cluster.nodes[0].count = nodes;
    return cluster;
  }
  WEFT_REQUIRE(nodes <= num_nodes(cluster), std::to_string(nodes) + " nodes, but the cluster " +
                                                cluster.name + " has " +
                                                std::to_string(num_nodes(cluster)));
  std::vector<NodeType> kept;
  for (NodeType type : cluster.nodes) {
    type.count = std::min(type.count, nodes);
    nodes -= type.count;
    if (type.count > 0) kept.push_back(type);
  }
  cluster.nodes = std::move(kept);
  return cluster;
}

std::string describe(const Cluster& cluster) {
  std::string text;
  for (const NodeType& type : cluster.nodes) {
    text += text.empty() ? "" : ", ";
    text += counted(type.count, "node") + " of " + std::to_string(type.devices) + " " +
            cluster.accelerators[static_cast<std::size_t>(type.accelerator)].name;
  }
  return text;
}

void check(const Cluster& cluster, const std::string& source) {
  if (cluster.nodes.empty()) fail_check(source, "the cluster has no nodes");
  for (const Accelerator& a : cluster.accelerators) check_accelerator(a, source);
  double sum = 0;
  for (const NodeType& type : cluster.nodes) {
    if (type.accelerator < 0 ||
        static_cast<std::size_t>(type.accelerator) >= cluster.accelerators.size())
      fail_check(source, "a node names an accelerator that is not there");
    check_range(source, "devices of a node", type.devices, {1, 65536});
    check_range(source, "number of nodes", type.count, {1, kMaxDevices});
    check_link(type.intra, "bandwidth inside a node", source);
    check_link(type.inter, "bandwidth between nodes", source);
    sum += static_cast<double>(type.devices) * type.count;
  }
  check_range(source, "number of devices", sum, {1, kMaxDevices});
}

}  // namespace weft::plan
