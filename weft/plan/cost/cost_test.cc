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

// bench/published/hardware_accelerators.csv: 2.5 PFLOP/s in bf16, 5 in fp8; data sheet: 10 in fp4.
TEST(DeviceModel, NarrowerProductsAreFasterButFp4KeepsAShareIn16Bits) {
  const Accelerator gb200 = known_accelerator("GB200 (per GPU)");
  const Software core = software("megatron_core");
  const auto seconds = [&](Precision precision) {
    const DeviceModel device(gb200, precision, core, calibration());
    const Operator op = {.m = 8192, .n = 28672, .k = 8192};
    return device.time(op).forward;
  };
  const double half = seconds(Precision::kBf16), eight = seconds(Precision::kFp8),
               four = seconds(Precision::kFp4);
  EXPECT_LT(eight, 0.65 * half);
  EXPECT_LT(four, 0.9 * eight);
  EXPECT_GT(four, 0.15 * half + 0.85 * half / 4);
}

GroupShape all_of(const Cluster& cluster) {
  std::vector<int> ranks(static_cast<std::size_t>(devices(cluster)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group_shape(cluster, ranks, 1);
}

double bus_bandwidth(const GroupShape& group, double bytes) {
  const double n = group.ranks;
  return 2 * (n - 1) / n * bytes / collective_seconds(ExchangeKind::kAllReduce, bytes, group);
}

double bus_bandwidth(const Cluster& cluster, double bytes) {
  return bus_bandwidth(all_of(cluster), bytes);
}

// nccl_collectives.csv and nccl_busbw_summary.csv, large messages.
TEST(Collectives, LargeAllReducesReachTheMeasuredBusBandwidths) {
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX A100", 1), 8e9), 235e9, 0.02 * 235e9);
  GroupShape ring = all_of(cluster_of_system("DGX H100", 1));
  EXPECT_NEAR(bus_bandwidth(ring, 8e9), 480e9, 0.02 * 480e9);
  ring.switched = 0;
  EXPECT_NEAR(bus_bandwidth(ring, 8e9), 370e9, 0.02 * 370e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX A100", 4), 8e9), 192e9, 0.02 * 192e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("DGX-1 V100", 1), 8e9), 122e9, 0.02 * 122e9);
  EXPECT_NEAR(bus_bandwidth(cluster_of_system("Jean Zay V100", 4), 4e9), 10.6e9, 0.02 * 10.6e9);
}

// nccl_collectives.csv: groups of H200 and B200 inside a node, 8 GiB.
TEST(Collectives, ReducedInTheSwitchReachTheMeasuredBusBandwidthsOfEachGroupSize) {
  for (const auto& [ranks, measured] : {std::pair{5, 414.2}, {6, 435.6}, {7, 460.0}, {8, 473.1}})
    EXPECT_NEAR(bus_bandwidth(cluster_of_accelerator("H200 SXM 141GB", 1, ranks), 8589934592.0),
                measured * 1e9, 0.03 * measured * 1e9)
        << ranks;
  for (const auto& [ranks, measured] :
       {std::pair{4, 673.2}, {5, 677.8}, {6, 778.2}, {7, 811.2}, {8, 838.0}})
    EXPECT_NEAR(bus_bandwidth(cluster_of_accelerator("B200 SXM", 1, ranks), 8589934592.0),
                measured * 1e9, 0.08 * measured * 1e9)
        << ranks;
}

TEST(Collectives, OfSmallArraysInsideANodeTakeTheMeasuredTime) {
  const Cluster h200 = cluster_of_accelerator("H200 SXM 141GB", 1, 8);
  for (const auto& [bytes, us] :
       {std::pair{32768.0, 39.96}, {1048576.0, 45.95}, {16777216.0, 133.52}})
    EXPECT_NEAR(collective_seconds(ExchangeKind::kAllReduce, bytes, all_of(h200)), us * 1e-6,
                0.15 * us * 1e-6)
        << bytes;
}

// A100 has no reductions in its switches.
TEST(Collectives, OfAmpereAreNotReducedInTheSwitch) {
  EXPECT_EQ(all_of(cluster_of_system("DGX A100", 1)).switched, 0);
  EXPECT_GT(all_of(cluster_of_system("DGX H100", 1)).switched, 0);
  EXPECT_EQ(all_of(cluster_of_system("DGX H100", 2)).switched, 0);
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

// Results are cached, so each order has a payload of its own.
TEST(Collectives, OfWeftDependOnTheirGroupAloneInAnyOrder) {
  const auto seconds = [](const GroupShape& group, double bytes) {
    return collective_seconds(ExchangeKind::kAllReduce, bytes, group);
  };
  const GroupShape network = all_of(cluster_of_system("Ethernet CPU farm", 4, 1));
  GroupShape late = network, narrow = network;
  late.inter.latency *= 10;
  narrow.inter.share /= 2;
  GroupShape sockets = all_of(cluster_of_system("Ethernet CPU farm", 1, 4));
  ASSERT_EQ(network.library, Library::kWeft);
  ASSERT_EQ(sockets.library, Library::kWeft);
  sockets.latency = 1e-4;
  sockets.shared_memory = false;
  GroupShape memory = sockets;
  memory.shared_memory = true;
  double bytes = 1e6;
  for (const auto& [one, other] :
       {std::pair(network, late), {network, narrow}, {memory, sockets}}) {
    bytes *= 2;
    const double first = seconds(one, bytes);
    EXPECT_NE(seconds(other, bytes), first);
    bytes *= 2;
    const double last = seconds(other, bytes);
    EXPECT_NE(seconds(one, bytes), last);
  }
}

TEST(Messages, BetweenNodesShareTheCardsOfTheirSenders) {
  const Cluster cluster = cluster_of_system("DLPerf cluster", 2);
  const double one = message_seconds(cluster, 0, 8, 100e6, 1),
               eight = message_seconds(cluster, 0, 8, 100e6, 8);
  EXPECT_NEAR(one, 100e6 / (12.5e9 * 0.9), 1e-4);
  EXPECT_NEAR(eight / one, 8, 0.1);
  EXPECT_LT(message_seconds(cluster, 0, 3, 100e6, 1), one);
}

// Of 8 copies of a token to experts on 4 nodes, each node is sent one: at most 3 leave the node.
TEST(Collectives, OfTokensSendEachNodeOneCopy) {
  const Cluster cluster = cluster_of_accelerator("H100 SXM 80GB", 4, 8);
  std::vector<int> ranks;
  for (int rank = 0; rank < 32; ++rank) ranks.push_back(rank);
  const GroupShape group = group_shape(cluster, ranks, 1);
  const double bytes = 1e9, all = collective_seconds(ExchangeKind::kAllToAll, bytes, group),
               once = dispatch_seconds(bytes, 8, group);
  EXPECT_LT(once, 0.5 * all);
  EXPECT_GT(once, 0.25 * all);
  EXPECT_EQ(dispatch_seconds(bytes, 8, {}), 0);
}

// bench/published/nccl_collectives.csv: 347 us for 16 MiB on 4 nodes with 8 cards of 100 Gb/s.
TEST(Collectives, OfTreesOverNodesFillTheNetwork) {
  Cluster cluster = cluster_of_accelerator("A100 SXM 80GB", 4, 8);
  cluster.nodes[0].inter.bandwidth = 100e9;
  std::vector<int> ranks;
  for (int rank = 0; rank < 32; ++rank) ranks.push_back(rank);
  const GroupShape group = group_shape(cluster, ranks, 1);
  EXPECT_NEAR(collective_seconds(ExchangeKind::kAllReduce, 16777216, group), 346e-6, 0.1 * 346e-6);
}

}  // namespace cost_test
}  // namespace weft::plan
