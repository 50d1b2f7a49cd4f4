#include "weft/plan/collectives/simulate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>

#include "weft/base/error.h"
#include "weft/base/testing/in_time.h"
#include "weft/plan/collectives/internal/parts.h"

namespace weft::plan {
namespace simulate_test {

using schedule::Algorithm;
using schedule::Collective;
using schedule::Level;
using schedule::Link;
using schedule::Request;
using schedule::Scope;
using schedule::Topology;

constexpr double kAlpha = 2e-6, kBeta = 1e-9, kGamma = 2.5e-10;
constexpr Link kLink{kAlpha, 1 / kBeta, 1 / kGamma};

std::shared_ptr<const Topology> flat(int world) {
  return std::make_shared<Topology>(world, std::vector<Level>{{Scope::kCluster, kLink, {}}});
}
std::shared_ptr<const Topology> hosts(int count, int each, Link network) {
  std::vector<int> host_of(static_cast<std::size_t>(count * each));
  for (std::size_t rank = 0; rank < host_of.size(); ++rank)
    host_of[rank] = static_cast<int>(rank) / each;
  return std::make_shared<Topology>(
      count * each,
      std::vector<Level>{{Scope::kCluster, network, {}}, {Scope::kHost, kLink, host_of}});
}

Request request(Collective collective, Algorithm algorithm, int world, std::int64_t count) {
  return {.collective = collective,
          .algorithm = algorithm,
          .world = world,
          .count = count,
          .topology = flat(world)};
}

double sum_of(const Simulation& simulation) {
  const auto& path = simulation.critical;
  return path.latency + path.wire + path.waiting + path.reduction;
}

// Hockney's model, with the formulas of Thakur, Rabenseifner, Gropp 2005, and Patarasuk, Yuan 2009.
// n is the length of the array in bytes, p the number of ranks.
TEST(Simulation, OfAFlatNetworkMatchesTheClosedForm) {
  const auto lg = [](double p) { return std::log2(p); };
  struct Case {
    Collective collective;
    Algorithm algorithm;
    std::function<double(double p, double n)> seconds;
  };
  const Case cases[] = {
      {Collective::kAllReduce, Algorithm::kRing,
       [](double p, double n) {
         return 2 * (p - 1) * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
       }},
      {Collective::kAllReduce, Algorithm::kRecursiveDoubling,
       [&](double p, double n) { return lg(p) * (kAlpha + n * (kBeta + kGamma)); }},
      {Collective::kAllReduce, Algorithm::kHalvingDoubling,
       [&](double p, double n) {
         return 2 * lg(p) * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
       }},
      {Collective::kAllReduce,
       Algorithm::kSharded,  // both phases send all messages at once through one port
       [](double p, double n) {
         return 2 * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
       }},
  };
  for (const auto& one : cases) {
    for (const int world : {2, 4, 16, 64}) {
      const std::int64_t count = 1 << 16;
      const auto simulated = simulate(request(one.collective, one.algorithm, world, count), 4);
      const double expected = one.seconds(world, 4.0 * static_cast<double>(count));
      EXPECT_NEAR(simulated.seconds, expected, 1e-9 * expected)
          << to_string(one.algorithm) << ", " << world << " ranks";
      EXPECT_NEAR(sum_of(simulated), simulated.seconds, 1e-9 * expected);
    }
  }
}

// The pipelined chain takes p + K - 2 steps of alpha + n / K beta, for K blocks of equal size.
TEST(Simulation, OfAPipelineIncludesFillAndDrain) {
  auto broadcast = request(Collective::kBroadcast, Algorithm::kDoubleBinaryTree, 2, 1 << 20);
  broadcast.chunk = 1 << 16;
  const auto simulated = simulate(broadcast, 4);
  const int blocks = (1 << 19) / (1 << 16);  // in each half; both halves go over the same link
  EXPECT_NEAR(simulated.seconds, blocks * kAlpha + 4.0 * (1 << 20) * kBeta, 1e-9);
}

TEST(Simulation, LetsRanksOfAHostShareItsPort) {
  // Two hosts of four ranks. In an all-to-all, each rank sends four blocks over the network. So
  // sixteen blocks leave a host one after the other.
  const Link network{1e-5, 1e8, 1e10};
  Request q = request(Collective::kAllToAll, Algorithm::kSharded, 8, 1000);
  q.topology = hosts(2, 4, network);
  const auto simulated = simulate(q, 4);
  EXPECT_EQ(simulated.levels[0].messages, 32);
  EXPECT_EQ(simulated.levels[1].messages, 24);
  EXPECT_DOUBLE_EQ(simulated.levels[0].busiest_port, 16 * 4000);
  EXPECT_NEAR(simulated.seconds, 1e-5 + 16 * 4000 / 1e8, 1e-9);
  EXPECT_NEAR(simulated.critical.waiting, 15 * 4000 / 1e8, 1e-9);
  EXPECT_NEAR(sum_of(simulated), simulated.seconds, 1e-12);
}

// A tree of radix 3. In the last round, rank 0 gets 3 blocks from rank 3 and 2 from rank 6. Rank 3
// is listed first, and ready later: it has received twice, rank 6 once. The message of rank 6 goes
// first, so the port of rank 0 is never idle: 7 blocks arrive one after the other.
TEST(Simulation, AReceiverTakesMessagesInTheOrderInWhichTheirSendersAreReady) {
  Request gather = request(Collective::kGather, Algorithm::kKnomial, 8, 1000);
  gather.radix = 3;
  const double block = 4 * 1000 * kBeta;
  ASSERT_LT(kAlpha, block);
  EXPECT_NEAR(simulate(gather, 4).seconds, 7 * block + kAlpha, 1e-12);
}

TEST(Simulation, NamesTheHopsOfTheLongestChain) {
  const auto simulated =
      simulate(request(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 8, 100), 4);
  const auto& hops = simulated.critical.hops;
  ASSERT_EQ(hops.size(), 3U);
  EXPECT_EQ(hops.back().to == simulated.last_rank || hops.back().from == simulated.last_rank, true);
  EXPECT_DOUBLE_EQ(hops.front().begin, 0);
  EXPECT_DOUBLE_EQ(hops.back().end, simulated.seconds);
  for (std::size_t i = 1; i < hops.size(); ++i) EXPECT_DOUBLE_EQ(hops[i].begin, hops[i - 1].end);
}

// The simulation sends as many bytes as schedule::cost() says, which is proved against the steps.
TEST(Simulation, CountsTheBytesOfTheBusiestRankLikeTheSchedule) {
  for (const auto algorithm : schedule::algorithms()) {
    if (algorithm == Algorithm::kDirect || !schedule::supports(algorithm, Collective::kAllReduce))
      continue;
    for (const int world : {2, 3, 7, 12}) {
      const auto q = request(Collective::kAllReduce, algorithm, world, 12 * 7 * 100);
      EXPECT_DOUBLE_EQ(simulate(q, 4).levels.back().busiest_port,
                       4.0 * static_cast<double>(schedule::cost(q).sent))
          << to_string(algorithm) << ", " << world << " ranks";
    }
  }
}

// In a large world, only some ranks are compared. This test compares all ranks of small worlds:
// rotated around the world, the ring's steps are the same.
TEST(SimulationBySymmetry, AllRanksOfARingDoTheSameAsTheFirst) {
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    for (const int world : {2, 3, 8, 33}) {
      const auto q = request(collective, Algorithm::kRing, world, world * 10);
      const auto all = internal::parts_of(q, 4);
      ASSERT_EQ(all.parts.size(), static_cast<std::size_t>(world));
      for (int rank = 1; rank < world; ++rank) {
        const auto& first = all.parts[0];
        const auto& other = all.parts[static_cast<std::size_t>(rank)];
        ASSERT_EQ(first.size(), other.size());
        for (std::size_t i = 0; i < first.size(); ++i) {
          EXPECT_EQ(first[i].round, other[i].round);
          EXPECT_EQ(first[i].bytes, other[i].bytes);
          EXPECT_EQ(first[i].reduces, other[i].reduces);
          EXPECT_EQ(first[i].peer < 0 ? -1 : (first[i].peer + rank) % world, other[i].peer);
        }
      }
    }
  }
}

// Measures processor time, since the simulation runs in one thread.
TEST(SimulationSlowTiming, TenThousandRanksTakeLessThanTenSeconds) {
  expect_within(std::chrono::seconds(10), [](SlowestRank& slowest) {
    const std::clock_t start = std::clock();
    const int world = 10'000;
    const double n = 4.0 * 6'250'000;
    const auto ring =
        simulate(request(Collective::kAllReduce, Algorithm::kRing, world, 6'250'000), 4);
    EXPECT_TRUE(ring.by_symmetry);
    const double p = world, expected = 2 * (p - 1) * kAlpha + 2 * (p - 1) / p * n * kBeta +
                                       (p - 1) / p * n * kGamma;
    EXPECT_NEAR(ring.seconds, expected, 1e-6 * expected);
    EXPECT_EQ(ring.levels[0].messages, std::int64_t{2} * (world - 1) * world);
    const auto tree = simulate(
        request(Collective::kAllReduce, Algorithm::kDoubleBinaryTree, world, 6'250'000), 4);
    EXPECT_FALSE(tree.by_symmetry);
    EXPECT_GT(tree.seconds, 2 * n * kBeta) << "everything goes up and comes down again";
    EXPECT_LT(tree.critical.latency, ring.critical.latency / 100);
    slowest.report(std::chrono::milliseconds((std::clock() - start) * 1000 / CLOCKS_PER_SEC));
  });
}

TEST(Simulation, RefusesSchedulesWithoutMessages) {
  EXPECT_THROW(simulate(request(Collective::kAllReduce, Algorithm::kDirect, 4, 100), 4), Error);
}

}  // namespace simulate_test
}  // namespace weft::plan
