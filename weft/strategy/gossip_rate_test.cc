// The distance of gossiping workers from their mean, against the mixing rate of the graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/schedule/gossip.h"
#include "weft/strategy/strategy.h"

namespace weft::strategy {
namespace gossip_rate_test {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

constexpr int kRounds = 8;

// W of a round: row r has the weights with which rank r hears the others.
Matrix matrix_of(const schedule::Gossip& gossip, std::int64_t round) {
  const auto world = static_cast<std::size_t>(gossip.world);
  Matrix w(world, Vector(world));
  for (std::size_t rank = 0; rank < world; ++rank) {
    const auto mixing = schedule::mixing(gossip, static_cast<int>(rank), round);
    w[rank][rank] = mixing.self;
    for (const auto& heard : mixing.hears)
      w[rank][static_cast<std::size_t>(heard.rank)] = heard.weight;
  }
  return w;
}

double distance(const Vector& x) {
  double mean = 0, sum = 0;
  for (const double value : x) mean += value / static_cast<double>(x.size());
  for (const double value : x) sum += (value - mean) * (value - mean);
  return std::sqrt(sum);
}

// The values whose distance a round shrinks least: the singular vector of W's second largest
// singular value, by power iteration on W^T W.
Vector slowest(const Matrix& w) {
  const std::size_t world = w.size();
  Vector x(world);
  for (std::size_t i = 0; i < world; ++i) x[i] = std::sin(static_cast<double>(3 * i * i + 1));
  for (int step = 0; step < 2000; ++step) {
    double mean = 0;
    for (const double value : x) mean += value / static_cast<double>(world);
    for (double& value : x) value -= mean;
    const double length = distance(x);
    Vector y(world), z(world);
    for (std::size_t i = 0; i < world; ++i)
      for (std::size_t j = 0; j < world; ++j) y[i] += w[i][j] * x[j] / length;
    for (std::size_t i = 0; i < world; ++i)
      for (std::size_t j = 0; j < world; ++j) z[i] += w[j][i] * y[j];
    x = z;
  }
  const double length = distance(x);
  for (double& value : x) value /= length;
  return x;
}

// Distances of the workers' values after each round, by the rule on ranks as threads.
Vector distances(const char* graph, const Vector& begin) {
  const auto workers = static_cast<int>(begin.size());
  Matrix values(kRounds, Vector(begin.size()));
  comm::replicate(workers, [&](const Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    at::Tensor mine = torch::zeros({3}, torch::kDouble);
    const auto rule = make_rule({.name = "gossip", .graph = graph},
                                {.workers = group, .world = group, .weights = {mine}});
    mine.fill_(begin[me]);
    for (int round = 0; round < kRounds; ++round) {
      rule->after_step({.number = round + 1, .lr = 0.1, .loss = 0, .samples = 1});
      values[static_cast<std::size_t>(round)][me] = mine[1].item<double>();
    }
  });
  Vector found;
  for (const Vector& x : values) found.push_back(distance(x));
  return found;
}

TEST(GossipRate, TheConsensusDistanceOf4And8And16RanksFallsAtTheMixingRate) {
  for (const char* graph : {"ring", "grid", "exponential"}) {
    for (const int workers : {4, 8, 16}) {
      const schedule::Gossip gossip{schedule::parse_graph(graph), workers};
      const double rate = schedule::mixing_rate(gossip);
      ASSERT_GT(rate, 0.1);
      ASSERT_LT(rate, 0.99);
      double expected = 1;
      for (const double found : distances(graph, slowest(matrix_of(gossip, 0)))) {
        expected *= rate;
        EXPECT_NEAR(found, expected, 1e-5 * expected) << graph << ", " << workers << " workers";
      }
    }
  }
}

// Ying and others 2021: log2(W) rounds make all values equal, whatever they were.
TEST(GossipRate, OnePeerExponentialReachesConsensusInLog2Rounds) {
  for (const int workers : {4, 8, 16}) {
    Vector begin;
    for (int w = 0; w < workers; ++w) begin.push_back(std::cos(3 * w * w));
    const Vector found = distances("one_peer_exponential", begin);
    const int rounds =
        schedule::rounds_to_thousandth({schedule::Graph::kOnePeerExponential, workers});
    EXPECT_EQ(1 << rounds, workers);
    EXPECT_GT(found[static_cast<std::size_t>(rounds) - 2], 0.01) << workers;
    EXPECT_LT(found[static_cast<std::size_t>(rounds) - 1], 1e-12) << workers;
  }
}

// Boyd and others 2006: the mean of the squared distance falls by the square of the rate.
TEST(GossipRate, RandomMatchingsStayNearTheirRate) {
  const double rate = schedule::mixing_rate({schedule::Graph::kRandomMatching, 16});
  Vector begin;
  for (int w = 0; w < 16; ++w) begin.push_back(w < 8 ? 1 : -1);
  const Vector found = distances("random_matching", begin);
  const double mean_rate = std::pow(found.back() / distance(begin), 1.0 / kRounds);
  EXPECT_NEAR(mean_rate, rate, 0.15);
}

}  // namespace gossip_rate_test
}  // namespace weft::strategy
