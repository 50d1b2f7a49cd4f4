#include "weft/plan/collectives/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "weft/base/error.h"

namespace weft::plan {
namespace choice_test {

using schedule::Algorithm;
using schedule::Collective;

constexpr double kAlpha = 3e-6, kBeta = 2e-9, kGamma = 5e-10;

// The network of the papers: full duplex, one message at a time, and a cost of reduction per byte.
TransportCost paper_network() {
  return {.message = Curve::line(kAlpha, kBeta),
          .reduce = Curve::line(0, kGamma),
          .copy = Curve::line(0, 0),
          .measured = {}};
}

double model_of(Collective collective, Algorithm algorithm, int world, std::int64_t count) {
  return model({.collective = collective, .algorithm = algorithm, .world = world, .count = count},
               1, paper_network());
}

// Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005.
// n is the length of the whole array in bytes, p the number of ranks, a power of two.
struct Formula {
  const char* section;
  Collective collective;
  Algorithm algorithm;
  std::function<double(double p, double n)> seconds;
};

TEST(Model, MatchesThePapersFormulasForThePapersNetwork) {
  const auto lg = [](double p) { return std::log2(p); };
  const Formula formulas[] = {
      {"4.1 ring", Collective::kAllGather, Algorithm::kRing,
       [&](double p, double n) { return (p - 1) * kAlpha + (p - 1) / p * n * kBeta; }},
      {"4.1 recursive doubling", Collective::kAllGather, Algorithm::kRecursiveDoubling,
       [&](double p, double n) { return lg(p) * kAlpha + (p - 1) / p * n * kBeta; }},
      {"4.2 binomial", Collective::kBroadcast, Algorithm::kBinomial,
       [&](double p, double n) { return lg(p) * (kAlpha + n * kBeta); }},
      {"4.3 pairwise", Collective::kAllToAll, Algorithm::kRing,
       [&](double p, double n) { return (p - 1) * kAlpha + (p - 1) / p * n * kBeta; }},
      {"4.4 recursive halving", Collective::kReduceScatter, Algorithm::kHalvingDoubling,
       [&](double p, double n) { return lg(p) * kAlpha + (p - 1) / p * n * (kBeta + kGamma); }},
      {"4.4 ring", Collective::kReduceScatter, Algorithm::kRing,
       [&](double p, double n) { return (p - 1) * kAlpha + (p - 1) / p * n * (kBeta + kGamma); }},
      {"4.5 recursive doubling", Collective::kAllReduce, Algorithm::kRecursiveDoubling,
       [&](double p, double n) { return lg(p) * (kAlpha + n * (kBeta + kGamma)); }},
      {"4.5 Rabenseifner", Collective::kAllReduce, Algorithm::kHalvingDoubling,
       [&](double p, double n) {
         return 2 * lg(p) * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
       }},
      {"Patarasuk and Yuan", Collective::kAllReduce, Algorithm::kRing,
       [&](double p, double n) {
         return 2 * (p - 1) * kAlpha + 2 * (p - 1) / p * n * kBeta + (p - 1) / p * n * kGamma;
       }},
  };
  for (const auto& formula : formulas) {
    for (const int world : {2, 4, 8, 16, 64}) {
      for (const std::int64_t bytes : {1 << 10, 1 << 20}) {
        const bool shares = formula.collective != Collective::kAllReduce &&
                            formula.collective != Collective::kBroadcast;
        const double expected = formula.seconds(world, static_cast<double>(bytes));
        EXPECT_NEAR(
            model_of(formula.collective, formula.algorithm, world, shares ? bytes / world : bytes),
            expected, 1e-9 * expected)
            << formula.section << ", " << world << " ranks, " << bytes << " bytes";
      }
    }
  }
}

TEST(Model, ChargesTheOverheadOfEachMessageOfARound) {
  auto cost = paper_network();
  cost.overhead = 7e-6;
  const schedule::Request request{.collective = Collective::kAllToAll,
                                  .algorithm = Algorithm::kSharded,
                                  .world = 5,
                                  .count = 1000};
  EXPECT_NEAR(model(request, 4, cost), kAlpha + 4 * 4000 * kBeta + 3 * 7e-6, 1e-12);
}

TEST(Model, AddsBothDirectionsIfProcessorsCopy) {
  auto cost = paper_network();
  cost.duplex = 1;
  const schedule::Request ring{.collective = Collective::kAllGather,
                               .algorithm = Algorithm::kRing,
                               .world = 3,
                               .count = 500};
  EXPECT_NEAR(model(ring, 4, cost), 2 * (kAlpha + 2 * 2000 * kBeta), 1e-12);
}

TEST(Predict, UsesTheMeasuredCurveIfThereIsOne) {
  CostTable table;
  table.transports[Transport::kTcp] = paper_network();
  const Curve curve({{1000, 1e-3}, {2000, 3e-3}});
  table.transports[Transport::kTcp].measured = {
      {Collective::kAllReduce, Algorithm::kRing, 4, curve}};
  schedule::Request request{.collective = Collective::kAllReduce,
                            .algorithm = Algorithm::kRing,
                            .world = 4,
                            .count = 375};
  EXPECT_DOUBLE_EQ(predict(request, 4, table, Transport::kTcp), 2e-3);
}

TEST(Predict, CorrectsTheModelByItsErrorInTheNearestMeasuredWorld) {
  CostTable table;
  table.transports[Transport::kTcp] = paper_network();
  const schedule::Request near{.collective = Collective::kAllReduce,
                               .algorithm = Algorithm::kRing,
                               .world = 4,
                               .count = 1000};
  const double modeled = model(near, 4, paper_network());
  table.transports[Transport::kTcp].measured = {
      {Collective::kAllReduce, Algorithm::kRing, 2, Curve({{0, 1}})},
      {Collective::kAllReduce, Algorithm::kRing, 4, Curve({{4000, 3 * modeled}})},
  };
  schedule::Request far = near;
  far.world = 16;
  far.topology = std::make_shared<schedule::Topology>(schedule::Topology::flat(16));
  EXPECT_NEAR(predict(far, 4, table, Transport::kTcp), 3 * model(far, 4, paper_network()), 1e-12);
}

TEST(Planner, ChoosesFewRoundsForShortArraysAndFewBytesForLongOnes) {
  CostTable table;
  table.transports[Transport::kTcp] = paper_network();
  table.transports[Transport::kTcp].overhead = kAlpha;  // one message at a time
  const Planner planner(table, {Transport::kTcp, 16});
  EXPECT_EQ(planner.choose({Collective::kAllReduce, 2, 4}).algorithm,
            Algorithm::kRecursiveDoubling);
  // Rabenseifner's algorithm moves as little as the ring in fewer rounds.
  const auto all = planner.candidates({Collective::kAllReduce, 10'000'000, 4});
  EXPECT_EQ(planner.choose({Collective::kAllReduce, 10'000'000, 4}).algorithm,
            all.front().algorithm);
  EXPECT_NE(all.front().algorithm, Algorithm::kRecursiveDoubling);
  EXPECT_GT(all.size(), 3U);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].seconds, all[i].seconds);
}

TEST(Planner, AnswersForEveryCollectiveSizeAndWorldOnEveryTransport) {
  for (const Transport transport : transports()) {
    for (const int world : {1, 2, 3, 8, 100}) {
      const Planner planner(default_table(), {transport, world});
      for (const Collective collective : schedule::collectives()) {
        for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3},
                                         std::int64_t{1000}, std::int64_t{1} << 40}) {
          if (collective == Collective::kBarrier && count > 0) continue;
          const Candidate best = planner.choose({collective, count, 8});
          EXPECT_TRUE(schedule::supports(best.algorithm, collective));
          EXPECT_EQ(best.algorithm == Algorithm::kDirect, transport == Transport::kDirect);
          EXPECT_TRUE(std::isfinite(best.seconds) && best.seconds >= 0);
          EXPECT_EQ(planner.choose({collective, count, 8}).algorithm, best.algorithm)
              << "the cache says something else";
        }
      }
    }
  }
}

TEST(Planner, ChoosesTheSameWhateverItWasAskedBefore) {
  const Planner first(default_table(), {Transport::kTcp, 7}),
      second(default_table(), {Transport::kTcp, 7});
  for (std::int64_t bytes = 8; bytes < (1 << 28); bytes = bytes * 9 / 8 / 8 * 8 + 8) {
    const auto eights = first.choose({Collective::kBroadcast, bytes / 8, 8});
    const auto ones = second.choose({Collective::kBroadcast, bytes, 1});
    EXPECT_EQ(eights.algorithm, ones.algorithm);
    EXPECT_EQ(eights.seconds, ones.seconds);
  }
}

TEST(Planner, ChoosesTheChunkOfAPipelinedAlgorithmToo) {
  CostTable table;
  table.transports[Transport::kTcp] = paper_network();
  const std::int64_t bytes = 8 << 20;
  const auto all =
      Planner(table, {Transport::kTcp, 4}).candidates({Collective::kBroadcast, bytes, 1});
  const auto chains = std::count_if(all.begin(), all.end(), [](const Candidate& one) {
    return one.algorithm == Algorithm::kChain;
  });
  EXPECT_EQ(static_cast<std::size_t>(chains), chunks_of(Algorithm::kChain).size());
  table.transports[Transport::kTcp].measured = {
      {Collective::kBroadcast, Algorithm::kChain, 4, Curve({{0, 1e-9}}), 256 << 10}};
  const Candidate best =
      Planner(table, {Transport::kTcp, 4}).choose({Collective::kBroadcast, bytes, 1});
  EXPECT_EQ(best.algorithm, Algorithm::kChain);
  EXPECT_EQ(best.chunk, 256 << 10);
  EXPECT_TRUE(best.measured);
}

TEST(Planner, RefusesInvalidRequests) {
  EXPECT_THROW(Planner(default_table(), {Transport::kTcp, 0}), Error);
  EXPECT_THROW(
      Planner(default_table(), {Transport::kTcp, 2}).choose({Collective::kAllReduce, -1, 4}),
      Error);
}

}  // namespace choice_test
}  // namespace weft::plan
