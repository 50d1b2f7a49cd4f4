// Tables of NCCL: times and bus bandwidths of collectives.
#include <cmath>

#include "bench/plan_tables/internal/adapters.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/cost/collectives.h"

namespace weft::plan::tables::internal {
namespace {

bool contains_word(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

Cluster cluster_of(const std::string& system, int nodes, int per_node) {
  if (contains_word(system, "Jean Zay") && contains_word(system, "A100"))
    return cluster_of_system("Jean Zay A100", nodes, per_node);
  if (contains_word(system, "Jean Zay")) return cluster_of_system("Jean Zay V100", nodes, per_node);
  if (contains_word(system, "p5en")) return cluster_of_system("AWS p5en.48xlarge", nodes, per_node);
  if (contains_word(system, "P6-B200")) return cluster_of_system("AWS P6-B200", nodes, per_node);
  for (const auto& [word, name] : {std::pair{"GB200", "GB200 (per GPU)"},
                                   {"GB300", "GB300 (per GPU)"},
                                   {"B200", "B200 SXM"},
                                   {"B300", "B300 SXM"},
                                   {"H200", "H200 SXM 141GB"},
                                   {"H100", "H100 SXM 80GB"}})
    if (contains_word(system, word)) return cluster_of_accelerator(name, nodes, per_node);
  if (contains_word(system, "unlabelled")) {
    Cluster cluster = cluster_of_accelerator("A100 SXM 80GB", nodes, per_node);
    cluster.nodes[0].inter.bandwidth = 100e9;  // its plateau of 92 GB/s is that of 8 x 100 Gb/s
    return cluster;
  }
  return cluster_of_accelerator("A100 SXM 80GB", nodes, per_node);
}

double bus_factor(ExchangeKind kind, double n) {
  return (kind == ExchangeKind::kAllReduce ? 2 : 1) * (n - 1) / n;
}

}  // namespace

void nccl_collectives_row(const CsvRow& r, Builder& b) {
  const int ranks = r.whole("ranks"), nodes = r.whole("nodes");
  const std::string& what = r.text("collective");
  const std::string& system = r.text("system");
  const ExchangeKind kind = what == "all_gather"       ? ExchangeKind::kAllGather
                            : what == "reduce_scatter" ? ExchangeKind::kReduceScatter
                                                       : ExchangeKind::kAllReduce;
  const double bytes = r.number("message_bytes");
  const double seconds = r.has("time_us")
                             ? r.number("time_us") * 1e-6
                             : bus_factor(kind, ranks) * bytes / (r.number("busbw_gb_per_s") * 1e9);
  const Cluster cluster = cluster_of(system, nodes, ranks / nodes);
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  Case& one = b.add(system.substr(0, 48) + ", " + what + ", " + r.text("message_bytes") + " bytes",
                    Json(), Quantity::kSeconds, seconds);
  one.scenario.clear();
  one.generation = cluster.accelerators[0].generation;
  GroupShape group = group_shape(cluster, members, 1);
  if (contains_word(system + what, "NVLS off")) group.switched = 0;
  one.predicted = collective_seconds(kind, bytes, group);
  if (contains_word(system, "nvlstree")) one.exception = "an algorithm that NCCL would not choose";
  if (contains_word(system, "before the PCIe/NUMA fix"))
    one.exception = "measured before the machine was repaired";
}

void nccl_summary_row(const CsvRow& r, Builder& b) {
  const std::string& system = r.text("system");
  const std::string& what = r.text("operation");
  const bool networks = contains_word(system, "SHARP") && r.text("scope") != "intra-node" &&
                        !contains_word(system, "NVL72");
  if (what.find("all_reduce") == std::string::npos || networks)
    return b.skip(1, "copies between two devices, and reductions in InfiniBand switches");
  const double bytes = 8e9, measured = r.number("busbw_gb_per_s") * 1e9;
  const bool several = r.text("scope") != "intra-node";
  const int nodes = several ? 4 : 1, per_node = 8;
  Cluster cluster;
  if (contains_word(system, "PCIe")) {
    cluster = cluster_of_accelerator("A100 PCIe 80GB", 1, 8);
    cluster.nodes[0].intra = known_link(contains_word(system, "Gen4")   ? "PCIe 4.0 x16"
                                        : contains_word(system, "Gen5") ? "PCIe 5.0 x16"
                                                                        : "PCIe 6.0 x16");
  } else if (contains_word(system, "V100")) {
    cluster = cluster_of_system("DGX-1 V100", nodes, per_node);
  } else if (contains_word(system, "NVL72")) {
    cluster = cluster_of_system("GB200 NVL72", 1, 32);
  } else if (contains_word(system, "B200")) {
    cluster = cluster_of_system("DGX B200", nodes, per_node);
  } else if (contains_word(system, "H100")) {
    cluster = cluster_of_system("DGX H100", nodes, per_node);
  } else {
    cluster = cluster_of_system("DGX A100", nodes, per_node);
  }
  NodeType& type = cluster.nodes[0];
  if (contains_word(system, "100GbE TCP")) type.inter = {12.5e9, 25e-6, 0.8};
  if (contains_word(system, "200 Gb/s RDMA")) type.inter = known_link("200 Gb/s IB HDR");
  if (contains_word(system, "400 Gb/s RDMA")) type.inter = known_link("400 Gb/s IB NDR");
  if (contains_word(system, "2x200")) type.inter.bandwidth = 50e9;
  std::vector<int> members;
  for (int rank = 0; rank < devices(cluster); ++rank) members.push_back(rank);
  const double n = static_cast<double>(members.size());
  Case& one = b.add(r.text("scope") + ", " + system, Json(), Quantity::kSeconds,
                    2 * (n - 1) / n * bytes / measured);
  one.scenario.clear();
  one.generation = cluster.accelerators[0].generation;
  GroupShape group = group_shape(cluster, members, 1);
  if (!contains_word(system, "SHARP")) group.switched = 0;
  one.predicted = collective_seconds(ExchangeKind::kAllReduce, bytes, group);
}

}  // namespace weft::plan::tables::internal
