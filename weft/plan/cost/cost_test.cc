// Times of operators against rooflines, and of collectives against measured bandwidths and
// formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "weft/plan/cluster/catalog.h"
#include "weft/plan/cost/collectives.h"
#include "weft/plan/cost/operators.h"
#include "weft/plan/model/model.h"

namespace weft::plan {
namespace cost_test {

struct Device {
  Accelerator accelerator;
  Software with = software("megatron");
  Calibration constants = calibration();
  DeviceModel model{accelerator, Precision::kFp16, with, constants};
};

double share_of_peak(const DeviceModel& device, const Product& p) {
  const double flops = 2 * p.m * p.n * p.k * p.batch;
  return flops / device.product(p, Precision::kFp16, false) /
         peak(device.accelerator(), Precision::kFp16);
}

TEST(DeviceModel, LargeProductsReachTheShareOfTheMeasuredBestOne) {
  const Device a100{known_accelerator("A100 SXM 80GB")};
  const double best = 271.2 / 312 * calibration().of(Generation::kAmpere).matmul;
  EXPECT_NEAR(share_of_peak(a100.model, {8192 * 4, 8192 * 2, 8192}), best, 0.03 * best);
}

TEST(DeviceModel, SmallAndNarrowProductsAreSlowerByTileAndWaveQuantization) {
  const Device a100{known_accelerator("A100 SXM 80GB")};
  const double large = share_of_peak(a100.model, {8192, 8192, 8192});
  EXPECT_LT(share_of_peak(a100.model, {256, 256, 8192}), 0.5 * large);
  // 109 tiles of 256 x 128 on 108 units take a second wave.
  const auto seconds = [&](double tiles) {
    return a100.model.product({256, 128 * tiles, 65536}, Precision::kFp16, false);
  };
  EXPECT_GT(seconds(109), 1.1 * seconds(108));
}

TEST(DeviceModel, SizesThatAreNoMultipleOfEightAreSlow) {
  const Device a100{known_accelerator("A100 SXM 80GB")};
  const double even = a100.model.product({4096, 50304, 2048}, Precision::kFp16, false),
               odd = a100.model.product({4096, 50257, 2048}, Precision::kFp16, false);
  EXPECT_GT(odd, 3 * even);
}

TEST(DeviceModel, MemoryBoundKernelsTakeTheirTrafficOverTheBandwidth) {
  const Device v100{known_accelerator("V100 SXM2 16GB")};
  const double share = calibration().of(Generation::kVolta).memory;
  EXPECT_NEAR(v100.model.memory(9e9, 1), 9e9 / (900e9 * share), 1e-5);
}

TEST(DeviceModel, MeasuredProductsAreThePredictionOfTheirShapes) {
  Accelerator cpu = known_accelerator("CPU core (AVX2)");
  cpu.rates = {{64, 64, 64, 1e-4}, {1024, 1024, 1024, 0.1}, {128, 512, 2048, 0.02}};
  const Device device{cpu};
  for (const MatmulRate& r : cpu.rates)
    EXPECT_NEAR(device.model.product({r.m, r.n, r.k}, Precision::kFp32, false), r.seconds,
                0.01 * r.seconds);
}

GroupShape all_of(const Cluster& cluster) {
  std::vector<int> ranks(static_cast<std::size_t>(devices(cluster)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group_shape(cluster, ranks, 1);
}

double bus_bandwidth(const Cluster& cluster, double bytes) {
  const double n = devices(cluster);
  return 2 * (n - 1) / n * bytes /
         collective_seconds(ExchangeKind::kAllReduce, bytes, all_of(cluster));
}

// nccl_collectives.csv and nccl_busbw_summary.csv, large messages.
TEST(Collectives, LargeAllReducesReachTheMeasuredBusBandwidths) {
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX A100", 1), 8e9), 235e9, 0.02 * 235e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX H100", 1), 8e9), 370e9, 0.02 * 370e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX A100", 4), 8e9), 192e9, 0.02 * 192e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX-1 V100", 1), 8e9), 122e9, 0.02 * 122e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("Jean Zay V100", 4), 4e9), 10.6e9, 0.02 * 10.6e9);
}

// nccl_collectives.csv: 32 ranks on 4 nodes with a bandwidth of 100 GB/s.
TEST(Collectives, OfSmallArraysOverSeveralNodesTakeTheMeasuredTime) {
  Cluster cluster = cluster_of_system("DGX A100", 4);
  cluster.nodes[0].inter = {100e9, 9.6e-6, 0.96};
  for (const auto& [bytes, us] :
       {std::pair{32768.0, 68.27}, {131072.0, 82.96}, {524288.0, 110.84}, {2097152.0, 170.78}})
    EXPECT_NEAR(collective_seconds(ExchangeKind::kAllReduce, bytes, all_of(cluster)), us * 1e-6,
                0.15 * us * 1e-6)
        << bytes;
}

TEST(Collectives, OfFewRanksOfACubeMeshDependOnTheirNvlinks) {
  const NodeType mesh = cluster_of_system("DGX-1 V100", 1).nodes[0];
  const double one = 25e9 * mesh.intra.share;
  EXPECT_DOUBLE_EQ(ring_bandwidth(mesh, {0, 1}), one);      // NV1
  EXPECT_DOUBLE_EQ(ring_bandwidth(mesh, {0, 3}), 2 * one);  // NV2
  EXPECT_DOUBLE_EQ(ring_bandwidth(mesh, {0, 1, 2, 3}), 4 * one);
  EXPECT_DOUBLE_EQ(ring_bandwidth(mesh, {0, 1, 2, 3, 4, 5, 6, 7}), 6 * one);
  EXPECT_LT(ring_bandwidth(mesh, {0, 5}), one);  // through the host
}

TEST(Collectives, OfOneRankAndOfNoBytesTakeNoTime) {
  const GroupShape one = group_shape(cluster_of_system("DGX A100", 1), {3}, 1);
  EXPECT_EQ(collective_seconds(ExchangeKind::kAllReduce, 1e9, one), 0);
  EXPECT_EQ(
      collective_seconds(ExchangeKind::kAllReduce, 0, all_of(cluster_of_system("DGX A100", 1))), 0);
}

// Groups that share a node's cards get a part of their bandwidth each.
TEST(Collectives, OfGroupsThatShareTheCardsOfANodeAreSlowerByTheirNumber) {
  const Cluster cluster = cluster_of_system("DGX A100", 4);
  const double alone = collective_seconds(ExchangeKind::kAllReduce, 4e9,
                                          group_shape(cluster, {0, 8, 16, 24}, 1)),
               shared = collective_seconds(ExchangeKind::kAllReduce, 4e9,
                                           group_shape(cluster, {0, 8, 16, 24}, 8));
  EXPECT_NEAR(shared / alone, 8, 0.1);
}

// weft's schedules, played: on one node's worth of equal links a ring takes 2 (n-1) (a + b s / n),
// plus adding (Thakur, Rabenseifner, Gropp 2005). The best algorithm is not slower.
TEST(Collectives, OfWeftArePlayedSchedulesThatAreNotSlowerThanTheFormulaOfARing) {
  Cluster farm = cluster_of_system("Ethernet CPU farm", 8, 1);
  const GroupShape group = all_of(farm);
  const double n = 8, bytes = 64e6,
               beta = farm.nodes[0].inter.bandwidth * farm.nodes[0].inter.share;
  const double ring =
      2 * (n - 1) * (farm.nodes[0].inter.latency + bytes / n / beta) + (n - 1) / n * bytes / 4e9;
  const double seconds = collective_seconds(ExchangeKind::kAllReduce, bytes, group);
  EXPECT_LE(seconds, ring * 1.001);
  EXPECT_GE(seconds, 2 * (n - 1) / n * bytes / beta);
}

TEST(Messages, BetweenNodesShareTheCardsOfTheirSenders) {
  const Cluster cluster = cluster_of_system("DLPerf cluster", 2);
  const double one = message_seconds(cluster, 0, 8, 100e6, 1),
               eight = message_seconds(cluster, 0, 8, 100e6, 8);
  EXPECT_NEAR(one, 100e6 / (12.5e9 * 0.9), 1e-4);
  EXPECT_NEAR(eight / one, 8, 0.1);
  EXPECT_LT(message_seconds(cluster, 0, 3, 100e6, 1), one);
}

}  // namespace cost_test
}  // namespace weft::plan
