// Clusters by name and from files.
#include "weft/plan/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/testing/decimal_comma.h"
#include "weft/base/testing/refusal.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/cluster/cluster_file.h"

namespace weft::plan {
namespace cluster_test {

TEST(Catalog, KnowsEachAcceleratorLinkAndSystemByItsOwnName) {
  for (const std::string& name : accelerator_names()) EXPECT_EQ(known_accelerator(name).name, name);
  for (const std::string& name : system_names()) EXPECT_EQ(known_system(name).name, name);
  for (const std::string& name : link_names()) EXPECT_GT(known_link(name).bandwidth, 0) << name;
}

TEST(Catalog, FindsAcceleratorsByTheNamesThatTablesUse) {
  EXPECT_EQ(known_accelerator("A100-80GB SXM").name, "A100 SXM 80GB");
  EXPECT_EQ(known_accelerator("V100-SXM2-16GB").name, "V100 SXM2 16GB");
  EXPECT_EQ(known_accelerator("V100-32GB").name, "V100 SXM2/SXM3 32GB");
  EXPECT_EQ(known_accelerator("NVIDIA H100").name, "H100 SXM 80GB");
  EXPECT_EQ(known_accelerator("8x Tesla P40").name, "Tesla P40 24GB");
  EXPECT_EQ(known_accelerator("Cloud TPU v3").name, "TPU v3 (chip, 2 cores)");
  EXPECT_EQ(known_accelerator("MI300X").name, "MI300X");
  expect_refused([] { known_accelerator("Z9000"); }, Errc::kInvalidArgument, "not known");
}

TEST(Catalog, FindsSystemsByTheBeginningOfTheirNames) {
  EXPECT_EQ(known_system("DGX-2 (V100-32GB SXM3)").name, "DGX-2");
  EXPECT_EQ(known_system("selene").name, "Selene DGX A100");
  expect_refused([] { known_system("Deep Thought"); }, Errc::kInvalidArgument, "not known");
}

TEST(Catalog, TakesLinksAsRates) {
  EXPECT_DOUBLE_EQ(known_link("25").bandwidth, 25e9);
  EXPECT_DOUBLE_EQ(known_link("100 Gb/s").bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(known_link("12.5 GB/s").bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(known_link("400 Gb/s IB NDR").bandwidth, 50e9);
  expect_refused([] { known_link("-3 GB/s"); }, Errc::kInvalidArgument, "not known");
}

TEST(Cluster, PlacesRanksOnNodesInOrderAndCountsThem) {
  Cluster cluster = cluster_of_system("Selene DGX A100", 2);
  Cluster other = cluster_of_system("Jean Zay V100", 3);
  cluster.accelerators.push_back(other.accelerators[0]);
  cluster.nodes.push_back(other.nodes[0]);
  cluster.nodes[1].accelerator = 1;
  EXPECT_EQ(devices(cluster), 28);
  EXPECT_EQ(num_nodes(cluster), 5);
  EXPECT_FALSE(is_uniform(cluster));
  EXPECT_EQ(device_place(cluster, 17).node, 2);
  EXPECT_EQ(device_place(cluster, 17).local, 1);
  EXPECT_EQ(accelerator_of(cluster, 27).name, "V100 SXM2/SXM3 32GB");
  EXPECT_EQ(devices(with_nodes(cluster, 3)), 20);
  expect_refused([&] { device_place(cluster, 28); }, Errc::kInvalidArgument, "28");
  expect_refused([&] { with_nodes(cluster, 0); }, Errc::kInvalidArgument, "0 nodes");
}

TEST(ClusterFile, ReadsWhatItWrites) {
  Cluster cluster = cluster_of_system("DLPerf cluster", 4);
  cluster.accelerators[0].rates = {{128, 256, 512, 1e-3}};
  cluster.accelerators[0].link = 0;  // files give the links of nodes
  cluster.machine = "a machine";
  const Cluster read = parse_cluster(to_toml(cluster), "test.toml");
  EXPECT_EQ(to_toml(read), to_toml(cluster));
  EXPECT_EQ(read.nodes[0].wiring, Wiring::kCubeMesh);
  EXPECT_EQ(read.accelerators[0].rates, cluster.accelerators[0].rates);
  EXPECT_EQ(read.machine, "a machine");
}

TEST(ClusterFile, IsTheSameInEachLocale) {
  const Cluster cluster = cluster_of_system("Selene DGX A100", 2000);
  const std::string text = to_toml(cluster);
  const DecimalComma locale;
  EXPECT_EQ(to_toml(cluster), text);
}

TEST(ClusterFile, TakesUsualLinksOfAKnownAccelerator) {
  const Cluster cluster = parse_cluster(
      "[node]\naccelerator = [\"A100 SXM 80GB\", \"V100 SXM2 16GB\"]\ndevices = [8, 8]\n",
      "two.toml");
  EXPECT_DOUBLE_EQ(cluster.nodes[0].intra.bandwidth, 300e9);
  EXPECT_EQ(cluster.nodes[1].wiring, Wiring::kCubeMesh);
}

void expect_bad(const std::string& toml, const std::string& part) {
  expect_refused([&] { parse_cluster(toml, "x.toml"); }, Errc::kBadConfig, part);
}

TEST(ClusterFile, RefusesMissingNegativeAndAbsurdValuesByOneLine) {
  const std::string node = "[node]\naccelerator = [\"A100\"]\n";
  expect_bad("", "no nodes");
  expect_bad(node, "node.devices");
  expect_bad(node + "devices = [0]\n", "devices");
  expect_bad(node + "devices = [8]\ninter_gb_per_s = [-1]\n", "inter_gb_per_s");
  expect_bad(node + "devices = [8, 8]\n", "has 2 entries, but node has 1");
  expect_bad(node + "devices = [8]\nintra_gbps = [1]\n", "did you mean");
  expect_bad("[node]\naccelerator = [\"Q7\"]\ndevices = [8]\n", "not known");
  expect_bad("[node]\naccelerator = [\"mine\"]\ndevices = [1]\n[accelerator]\nname = [\"mine\"]\n",
             "accelerator.memory_gb");
  const std::string mine =
      "[node]\naccelerator = [\"mine\"]\ndevices = [1]\nintra_gb_per_s = [1]\n"
      "inter_gb_per_s = [1]\n[accelerator]\nname = [\"mine\"]\nmemory_gb = [16]\n"
      "bandwidth_gb_per_s = [100]\n";
  expect_bad(mine, "no peak FLOP/s");
  expect_bad(mine + "fp32_tflops = [1e9]\n", "fp32_tflops");
  expect_bad(node + "devices = [100]\ncount = [100000]\n", "number of devices");
}

}  // namespace cluster_test
}  // namespace weft::plan
