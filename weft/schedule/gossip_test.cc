#include "weft/schedule/gossip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::schedule {
namespace gossip_test {

using std::numbers::pi;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

constexpr double kClose = 2e-5;  // error of power iteration if eigenvalues are close together

std::vector<double> next(const Gossip& gossip, std::int64_t round, const std::vector<double>& x) {
  std::vector<double> y(x.size());
  for (int rank = 0; rank < gossip.world; ++rank) {
    const Mixing m = mixing(gossip, rank, round);
    double& sum = y[static_cast<std::size_t>(rank)];
    sum = m.self * x[static_cast<std::size_t>(rank)];
    for (const Neighbor& n : m.hears) sum += n.weight * x[static_cast<std::size_t>(n.rank)];
  }
  return y;
}

double spread_of(const std::vector<double>& x) {
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  double sum = 0;
  for (const double value : x) sum += (value - mean) * (value - mean);
  return sum;
}

std::vector<double> drawn(int world) {
  Random random(7);
  std::vector<double> x(static_cast<std::size_t>(world));
  for (double& value : x) value = random.uniform();
  return x;
}

TEST(Gossip, IsDoublyStochasticAndEverySendHasAReceiver) {
  for (const Graph graph : graphs()) {
    for (const int world : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 31, 64}) {
      for (std::int64_t round = 0; round < 7; ++round) {
        const Gossip gossip{graph, world, 3};
        std::vector<double> given(static_cast<std::size_t>(world));
        for (int rank = 0; rank < world; ++rank) {
          const Mixing m = mixing(gossip, rank, round);
          double taken = m.self;
          given[static_cast<std::size_t>(rank)] += m.self;
          for (const Neighbor& n : m.hears) {
            taken += n.weight;
            given[static_cast<std::size_t>(n.rank)] += n.weight;
            const Mixing theirs = mixing(gossip, n.rank, round);
            EXPECT_EQ(std::count(theirs.sends_to.begin(), theirs.sends_to.end(), rank), 1);
          }
          EXPECT_EQ(m.sends_to.size(), m.hears.size());
          EXPECT_NEAR(taken, 1, 1e-12);
        }
        for (const double column : given)
          EXPECT_NEAR(column, 1, 1e-12) << to_string(graph) << " of " << world;
      }
    }
  }
}

// A ring's matrix is circulant: its eigenvalues are 1/3 + 2/3 cos(2 pi k / W).
TEST(MixingRate, OfARingIsItsSecondEigenvalue) {
  for (const int world : {3, 4, 5, 8, 16, 33}) {
    double largest = 0;
    for (int k = 1; k < world; ++k)
      largest = std::max(largest, std::abs(1.0 / 3 + 2.0 / 3 * std::cos(2 * pi * k / world)));
    EXPECT_THAT(mixing_rate({Graph::kRing, world}), DoubleNear(largest, kClose)) << world;
  }
  EXPECT_THAT(mixing_rate({Graph::kRing, 2}), DoubleNear(0, 1e-12));
}

// The torus is a product of two rings: 1/5 + 2/5 cos(2 pi a / R) + 2/5 cos(2 pi b / C).
TEST(MixingRate, OfAGridIsItsSecondEigenvalue) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<int, int>>{{3, 3}, {4, 4}, {3, 5}, {5, 7}}) {
    double largest = 0;
    for (int a = 0; a < rows; ++a) {
      for (int b = a == 0 ? 1 : 0; b < columns; ++b) {
        largest = std::max(largest, std::abs(0.2 + 0.4 * std::cos(2 * pi * a / rows) +
                                             0.4 * std::cos(2 * pi * b / columns)));
      }
    }
    EXPECT_THAT(mixing_rate({Graph::kGrid, rows * columns}), DoubleNear(largest, kClose))
        << rows << " x " << columns;
  }
}

// Ying, Yuan, Chen, Hu, Pan, Yin: Exponential graph is provably efficient for decentralized deep
// training, 2021: the gap is 2 / (1 + ceil(log2 W)) for even W and larger for odd W.
TEST(MixingRate, OfTheExponentialGraphMatchesYingAndOthers) {
  for (const int world : {4, 6, 8, 16, 32, 48, 64}) {
    const double gap = 2 / (1 + std::ceil(std::log2(world)));
    EXPECT_THAT(spectral_gap({Graph::kExponential, world}), DoubleNear(gap, kClose)) << world;
  }
  for (const int world : {5, 7, 9, 33})
    EXPECT_GT(spectral_gap({Graph::kExponential, world}), 2 / (1 + std::ceil(std::log2(world))));
}

// The same paper: log2 W rounds of the one-peer graph average exactly if W is a power of two, and
// never if it is not.
TEST(MixingRate, OfTheOnePeerExponentialGraphIsZeroIfTheWorldIsAPowerOfTwo) {
  for (const int world : {2, 4, 8, 32}) {
    const Gossip gossip{Graph::kOnePeerExponential, world};
    EXPECT_EQ(mixing_rate(gossip), 0) << world;
    std::vector<double> x = drawn(world);
    for (int round = 0; (1 << round) < world; ++round) x = next(gossip, round, x);
    EXPECT_LT(spread_of(x), 1e-24);
  }
  for (const int world : {3, 6, 12})
    EXPECT_GT(mixing_rate({Graph::kOnePeerExponential, world}), 0.1) << world;
}

// Boyd and others 2006: the expected square of the distance shrinks by the second eigenvalue of
// E[W], which is (W-2) / (2(W-1)) for a uniform matching of all ranks. The mean over many seeds
// converges to it.
TEST(MixingRate, OfRandomMatchingsIsTheMeanOverManyMatchings) {
  for (const int world : {2, 6, 9, 16}) {
    const std::vector<double> x = drawn(world);
    double sum = 0;
    constexpr int kSeeds = 4000;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
      sum += spread_of(next({Graph::kRandomMatching, world, seed}, 0, x));
    const double rate = mixing_rate({Graph::kRandomMatching, world});
    EXPECT_NEAR(sum / kSeeds / spread_of(x), rate * rate, 0.02) << world;
  }
}

TEST(RandomMatching, IsTheSameForOneSeedAndDiffersInEveryRound) {
  int changes = 0;
  for (std::int64_t round = 0; round < 20; ++round) {
    const Gossip gossip{Graph::kRandomMatching, 9, 11};
    int resting = 0;
    for (int rank = 0; rank < 9; ++rank) {
      const Mixing m = mixing(gossip, rank, round);
      if (m.hears.empty()) {
        ++resting;
        continue;
      }
      EXPECT_EQ(mixing(gossip, m.hears[0].rank, round).hears, (std::vector<Neighbor>{{rank, 0.5}}));
      if (mixing(gossip, rank, round + 1).hears != m.hears) ++changes;
    }
    EXPECT_EQ(resting, 1);
  }
  EXPECT_GT(changes, 100);
}

TEST(Gossip, RefusesInvalidArgumentsAndParsesItsNames) {
  EXPECT_THROW(mixing({Graph::kRing, 0}, 0, 0), Error);
  EXPECT_THROW(mixing({Graph::kRing, 4}, 4, 0), Error);
  EXPECT_THROW(mixing({Graph::kRing, 4}, 0, -1), Error);
  for (const Graph graph : graphs()) EXPECT_EQ(parse_graph(to_string(graph)), graph);
  EXPECT_THAT([] { parse_graph("exponental"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("did you mean 'exponential'")));
}

}  // namespace gossip_test
}  // namespace weft::schedule
