// Schedules that follow a topology: the property test over many topologies, and the traffic on each
// level compared with theory.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/schedule/proof.h"
#include "weft/schedule/schedule.h"

namespace weft::schedule {
namespace topology_schedule_test {

using Shared = std::shared_ptr<const Topology>;

Shared share(Topology topology) { return std::make_shared<const Topology>(std::move(topology)); }
Level level(Scope scope, std::vector<int> group_of) {
  return {scope, default_link(scope), std::move(group_of)};
}

// Racks of hosts of NUMA nodes, all of the same size.
Topology even(int racks, int hosts, int nodes, int ranks) {
  std::vector<int> rack, host, node;
  for (int r = 0; r < racks * hosts * nodes * ranks; ++r) {
    node.push_back(r / ranks);
    host.push_back(r / ranks / nodes);
    rack.push_back(r / ranks / nodes / hosts);
  }
  const int world = racks * hosts * nodes * ranks;
  return Topology(
      world, {{}, level(Scope::kRack, rack), level(Scope::kHost, host), level(Scope::kNuma, node)});
}

std::vector<Shared> topologies() {
  return {
      share(Topology::hosts({1})),
      share(Topology::hosts({5})),
      share(Topology::hosts({1, 1, 1})),
      share(Topology::hosts({2, 2})),
      share(Topology::hosts({4, 4, 3})),
      share(Topology::hosts({7, 1, 2})),
      share(Topology::hosts({8, 3, 5, 1, 8})),
      share(even(2, 2, 2, 2)),
      share(even(2, 3, 1, 2)),
      share(Topology(12, {{}, level(Scope::kHost, {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 2})})),
      // Three levels inside the cluster, with unequal groups and scattered ranks.
      share(Topology(14, {{},
                          level(Scope::kRack, {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0}),
                          level(Scope::kHost, {0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 0, 4}),
                          level(Scope::kNuma, {0, 0, 0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 1, 6})})),
  };
}

std::string text(const Request& q) {
  return std::string(to_string(q.algorithm)) + " " + to_string(q.collective) + " of " +
         std::to_string(q.count) + " over " + q.topology->describe() + " from root " +
         std::to_string(q.root) + " in blocks of " + std::to_string(q.chunk) +
         (q.across ? std::string(" across by ") + to_string(*q.across) : "");
}

std::vector<int> roots(Collective collective, int world) {
  const bool rooted = collective == Collective::kBroadcast || collective == Collective::kReduce;
  return rooted && world > 1 ? std::vector{0, world / 2, world - 1} : std::vector{0};
}

void prove_over(Request q, const Shared& topology, std::int64_t chunk) {
  q.topology = topology;
  q.world = topology->world();
  q.chunk = chunk;
  for (const std::int64_t count : {0, 1, q.world - 1, 3 * q.world + 1, 360}) {
    for (const int root : roots(q.collective, q.world)) {
      q.count = count;
      q.root = root;
      ASSERT_NO_THROW(prove(q)) << text(q);
    }
  }
}

TEST(Hierarchical, IsRightOnEveryTopology) {
  for (const Shared& topology : topologies()) {
    for (const Collective collective : collectives()) {
      if (!supports(Algorithm::kHierarchical, collective)) continue;
      for (const std::int64_t chunk : {0, 7})
        prove_over({.collective = collective, .algorithm = Algorithm::kHierarchical}, topology,
                   chunk);
    }
  }
}

TEST(Hierarchical, GoesAcrossByEveryAlgorithmThatDoesTheCollective) {
  for (const Shared& topology : {share(Topology::hosts({4, 4, 3})), share(even(3, 2, 1, 2))}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
      for (const Algorithm across : algorithms()) {
        const bool nested = across == Algorithm::kDirect || across == Algorithm::kTorus ||
                            across == Algorithm::kHierarchical;
        if (nested || !supports(across, collective)) continue;
        prove_over(
            {.collective = collective, .algorithm = Algorithm::kHierarchical, .across = across},
            topology, 0);
      }
    }
  }
}

TEST(RingAndChain, AreRightOnEveryTopology) {
  for (const Shared& topology : topologies()) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kChain}) {
      for (const Collective collective : collectives()) {
        if (supports(algorithm, collective))
          prove_over({.collective = collective, .algorithm = algorithm}, topology, 0);
      }
    }
  }
}

TEST(Torus, IsRightOnEveryGrid) {
  for (const bool wraps : {true, false}) {
    for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{
             {1, 5}, {5, 1}, {2, 2}, {2, 3}, {3, 3}, {4, 5}, {7, 3}, {8, 8}}) {
      prove_over({.algorithm = Algorithm::kTorus}, share(Topology::grid({rows, columns, wraps})),
                 0);
    }
  }
}

// Mikami and others 2018: the number of rounds grows with the sides. Patarasuk and Yuan: the lower
// bound of the bytes.
TEST(Torus, TakesRoundsByItsSidesAndSendsNoMoreThanTheLowerBound) {
  Request q{.algorithm = Algorithm::kTorus, .world = 32, .count = 3200};
  q.topology = share(Topology::grid({4, 8}));
  EXPECT_EQ(cost(q), (Cost{2 * (4 + 8 - 2), 2 * 3200 * 31 / 32}));
  q.topology = nullptr;  // the default grid of 32 ranks is 4 x 8
  EXPECT_EQ(cost(q), (Cost{20, 6200}));
}

// On a mesh no hop of the rings spans more than two links.
TEST(Torus, FoldsTheRingsOfAMesh) {
  Request q{.algorithm = Algorithm::kTorus, .world = 35, .count = 70};
  q.topology = share(Topology::grid({5, 7, /*wraps=*/false}));
  for (q.rank = 0; q.rank < q.world; ++q.rank) {
    for (const Step& step : make(q).steps) {
      if (step.peer < 0) continue;
      const int rows = std::abs(step.peer / 7 - q.rank / 7),
                columns = std::abs(step.peer % 7 - q.rank % 7);
      EXPECT_TRUE(rows + columns <= 2 && (rows == 0 || columns == 0))
          << q.rank << " and " << step.peer;
    }
  }
}

Request over(Shared topology, Collective collective, std::int64_t count,
             Algorithm algorithm = Algorithm::kHierarchical) {
  const int world = topology->world();
  return {.collective = collective,
          .algorithm = algorithm,
          .world = world,
          .count = count,
          .topology = std::move(topology)};
}

// Cho and others 2019. H = 3 hosts of m = 4 ranks, n = 1200. 2n(H-1)/H elements leave each host,
// divided among all its ranks. Inside, each rank sends n/m elements to three peers, twice.
TEST(Hierarchical, SendsOverEachLevelWhatTheTheorySays) {
  const Request q = over(share(Topology::hosts({4, 4, 4})), Collective::kAllReduce, 1200);
  EXPECT_EQ(traffic(q), (std::vector<Traffic>{{3 * 1600, 1600}, {12 * 1800, 1800}}));
  EXPECT_EQ(cost(q), (Cost{1 + 4 + 1, 1800 + 400}));  // 2n(1 - H/W) inside, 2(n/m)(H-1)/H across

  const auto across = [&](Collective collective, std::int64_t count) {
    return traffic(over(q.topology, collective, count))[0];
  };
  // The blocks of the 8 ranks on other hosts, once each.
  EXPECT_EQ(across(Collective::kReduceScatter, 100), (Traffic{3 * 800, 800}));
  // The host's own 4 blocks to two hosts.
  EXPECT_EQ(across(Collective::kAllGather, 100), (Traffic{3 * 800, 800}));
  // Once into each other host, along a chain.
  EXPECT_EQ(across(Collective::kBroadcast, 1200), (Traffic{2 * 1200, 1200}));
  EXPECT_EQ(across(Collective::kReduce, 1200), (Traffic{2 * 1200, 1200}));
  EXPECT_EQ(traffic(over(q.topology, Collective::kAllReduce, 1200, Algorithm::kRing))[0].busiest,
            2 * 1100);
  EXPECT_EQ(
      traffic(over(q.topology, Collective::kReduceScatter, 100, Algorithm::kSharded))[0].busiest,
      4 * 800);
}

TEST(Hierarchical, SendsAsMuchOutOfEachHostWhereHostsAreUnequalAndEveryRankCarriesItsShare) {
  const auto hosts = share(Topology::hosts({4, 4, 3}));
  Request q = over(hosts, Collective::kAllReduce, 3600);
  EXPECT_EQ(traffic(q)[0], (Traffic{3 * 4800, 4800}));  // 2n(H-1)/H
  for (q.rank = 0; q.rank < q.world; ++q.rank) {
    std::int64_t crossing = 0;
    for (const Step& step : make(q).steps) {
      if (step.action == Action::kSend && hosts->level_of(q.rank, step.peer) == 0)
        crossing += step.count;
    }
    EXPECT_EQ(crossing, q.rank < 8 ? 1200 : 1600) << q.rank;
  }
}

// Each level halves what a rank carries. Of n elements, a rank sends half inside its NUMA node; of
// the half that it keeps, it sends half to the other node of its host; and so on.
TEST(Hierarchical, HalvesWhatGoesFurtherOnEachOfFourLevels) {
  const Request q = over(share(even(2, 2, 2, 2)), Collective::kAllReduce, 1600);
  const std::vector<Traffic> levels = traffic(q);
  EXPECT_EQ(levels[3].busiest, 2 * 800);      // a rank
  EXPECT_EQ(levels[2].busiest, 2 * 2 * 400);  // a node of two ranks
  EXPECT_EQ(levels[1].busiest, 2 * 4 * 200);  // a host of four
  EXPECT_EQ(levels[0].busiest, 2 * 8 * 100);  // a rack of eight
  EXPECT_EQ(cost(q).rounds, 3 + 2 + 3);
}

TEST(Chain, EntersAndLeavesEachHostOnceWhereverItsRanksWerePlaced) {
  const auto scattered = share(Topology(9, {{}, level(Scope::kHost, {0, 1, 2, 0, 1, 2, 0, 1, 2})}));
  Request q = over(scattered, Collective::kBroadcast, 90, Algorithm::kChain);
  q.root = 4;
  EXPECT_EQ(traffic(q)[0], (Traffic{2 * 90, 90}));
  q.topology = nullptr;  // in the order of ranks, every hop crosses hosts
  const std::vector<Traffic> alike = traffic(q);
  EXPECT_EQ(alike, (std::vector<Traffic>{{8 * 90, 90}}));
}

}  // namespace topology_schedule_test
}  // namespace weft::schedule
