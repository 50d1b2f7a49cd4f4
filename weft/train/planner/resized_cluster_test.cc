// Clusters whose hosts have other numbers of ranks.
#include "weft/train/planner/internal/resized_cluster.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "weft/comm/testing/fork_ranks.h"
#include "weft/train/planner/internal/machine_rates.h"

namespace weft::train::internal {
namespace resized_cluster_test {

using Sizes = std::vector<std::pair<int, int>>;  // by type: ranks of a host, hosts

Sizes sizes_of(const plan::Cluster& cluster) {
  Sizes sizes;
  for (const plan::NodeType& node : cluster.nodes) sizes.emplace_back(node.devices, node.count);
  return sizes;
}

// Two hosts of four ranks and four processors.
plan::Cluster of_two_hosts() {
  plan::Cluster cluster;
  cluster.accelerators = {{.name = "processor"}};
  cluster.accelerators[0].memory = 4e9;
  cluster.nodes = {{.devices = 4, .count = 2, .processors = 4}};
  return cluster;
}

TEST(ResizedCluster, TakesRanksFromTheFullestHostAndGivesThemToTheEmptiest) {
  const plan::Cluster two = of_two_hosts();
  EXPECT_EQ(sizes_of(with_ranks(two, 8)), (Sizes{{4, 2}}));
  const plan::Cluster seven = with_ranks(two, 7);
  EXPECT_EQ(sizes_of(seven), (Sizes{{4, 1}, {3, 1}}));
  EXPECT_EQ(sizes_of(with_ranks(two, 6)), (Sizes{{3, 2}}));
  EXPECT_EQ(sizes_of(with_ranks(two, 1)), (Sizes{{1, 1}}));
  EXPECT_EQ(sizes_of(with_ranks(seven, 8)), (Sizes{{4, 1}, {4, 1}}));
  EXPECT_EQ(sizes_of(with_ranks(seven, 9)), (Sizes{{4, 1}, {5, 1}}));
  EXPECT_EQ(plan::devices(with_ranks(two, 7)), 7);
}

TEST(ResizedCluster, RanksShareTheMemoryOfTheirHost) {
  const plan::Cluster seven = with_ranks(of_two_hosts(), 7);
  const auto memory_of = [&](std::size_t type) {
    return seven.accelerators[static_cast<std::size_t>(seven.nodes[type].accelerator)].memory;
  };
  EXPECT_NEAR(memory_of(0), 4e9, 1);
  EXPECT_NEAR(memory_of(1), 16e9 / 3, 1);
}

TEST(ResizedCluster, RanksHaveTheSpeedOfTheirHost) {
  const plan::Cluster two = of_two_hosts();
  EXPECT_TRUE(slowness_with(two, {}, 7).empty());
  const std::vector<double> slowness = {0.6, 0.8, 0.8, 0.6, 1.3, 1.3, 1.2, 1.4};
  const auto seven = slowness_with(two, slowness, 7);
  ASSERT_EQ(seven.size(), 7u);
  for (std::size_t rank = 0; rank < 7; ++rank)
    EXPECT_NEAR(seven[rank], rank < 4 ? 0.7 : 1.3, 1e-12) << rank;
  const auto one = slowness_with(two, slowness, 1);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_NEAR(one[0], 0.7, 1e-12);
}

TEST(ResizedCluster, HostsWithOtherNumbersOfRanksAreMeasuredAsTypesOfTheirOwn) {
  const auto measured = [](const Group& world) {
    const plan::Cluster cluster = measure_cluster(world, /*quick=*/true);
    if (sizes_of(cluster) != Sizes{{2, 1}, {1, 1}}) return 1;
    return cluster.accelerators[1].memory > 1.9 * cluster.accelerators[0].memory ? 0 : 2;
  };
  EXPECT_EQ(comm::fork_ranks(3, "auto", measured, {"a", "a", "b"}), std::vector<int>(3, 0));
}

TEST(ResizedCluster, ARankAloneOnItsHostSharesNothing) {
  const auto measured = [](const Group& world) {
    const plan::Cluster cluster = measure_cluster(world, /*quick=*/true);
    if (sizes_of(cluster) != Sizes{{1, 2}}) return 1;
    const Turn turn = turn_of(world);
    return turn.turn == 0 && turn.turns == 1 ? 0 : 2;
  };
  EXPECT_EQ(comm::fork_ranks(2, "auto", measured, {"a", "b"}), std::vector<int>(2, 0));
}

}  // namespace resized_cluster_test
}  // namespace weft::train::internal
