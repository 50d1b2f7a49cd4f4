#include "weft/comm/gossip.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;
using schedule::Graph;

// Expected by hand: one third of the rank's own value and of each neighbor's.
TEST(Gossip, OnARingAveragesARankWithItsNeighbors) {
  replicate(4, [](const Group& group) {
    at::Tensor x = at::full({3}, 9.0 * group.rank(), at::kDouble);
    gossip(group, x, 0, {.graph = Graph::kRing});
    const double expected[] = {(0 + 9 + 27) / 3.0, (0 + 9 + 18) / 3.0, (9 + 18 + 27) / 3.0,
                               (18 + 27 + 0) / 3.0};
    EXPECT_TRUE(at::allclose(x, at::full({3}, expected[group.rank()], at::kDouble)))
        << group.rank() << ": " << x;
  });
}

// Ying et al. 2021: log2 W rounds of the one-peer exponential graph give the exact average.
TEST(Gossip, OnePeerGraphAveragesExactlyAfterLogWRoundsIfWIsAPowerOfTwo) {
  for (const int world : {2, 4, 8}) {
    replicate(world, [world](const Group& group) {
      at::Tensor x = at::arange(5, at::kFloat) + 8 * group.rank();
      for (int round = 0; (1 << round) < world; ++round)
        gossip(group, x, round, {.graph = Graph::kOnePeerExponential});
      EXPECT_TRUE(at::equal(x, at::arange(5, at::kFloat) + 4 * (world - 1))) << world << ": " << x;
    });
  }
}

// The average of all ranks' values, and their distance from it (root of the sum of squares).
std::pair<double, double> distance_and_mean(const Group& group, const at::Tensor& x) {
  at::Tensor all = at::empty({group.size() * x.numel()}, x.options());
  group.all_gather(all, x);
  all = all.view({group.size(), -1});
  return {(all - all.mean(0, /*keepdim=*/true)).norm().item<double>(), all.mean().item<double>()};
}

bool shrinks_as_promised(const Group& group, Graph graph) {
  at::Tensor x = at::sin(at::arange(16, at::kDouble) * (1 + group.rank()));
  const auto [start, mean] = distance_and_mean(group, x);
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round)
    gossip(group, x, round, {.graph = graph, .seed = 5});
  const auto [end, mean_after] = distance_and_mean(group, x);
  if (std::abs(mean - mean_after) > 1e-12) return false;
  // Its mixing rate holds in expectation only.
  if (graph == Graph::kRandomMatching) return end < start;
  const double rate = schedule::mixing_rate({graph, group.size()});
  return end <= start * std::pow(rate, kRounds) * (1 + 1e-4) + 1e-12;
}

TEST(Gossip, ConvergesAtTheMixingRateAndKeepsTheAverage) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = fork_ranks(5, transport, [](const Group& group) {
      for (const Graph graph : schedule::graphs()) {
        if (!shrinks_as_promised(group, graph)) {
          std::fprintf(stderr, "%s over %d ranks\n", schedule::to_string(graph), group.size());
          return 1;
        }
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(5, 0)) << transport;
  }
}

// Rank r sends r + 1 numbers.
TEST(Gossip, ExchangesVectorsOfAnyLengthsWithNeighbors) {
  replicate(4, [](const Group& group) {
    const auto mixing = schedule::mixing({Graph::kRing, 4}, group.rank(), 0);
    const at::Tensor mine = at::full({group.rank() + 1}, group.rank(), at::kByte);
    std::vector<std::int64_t> lengths;
    for (const auto& from : mixing.hears) lengths.push_back(from.rank + 1);
    const auto heard = exchange_with_neighbors(group, mixing, mine, lengths);
    ASSERT_EQ(heard.size(), mixing.hears.size());
    for (std::size_t i = 0; i < heard.size(); ++i) {
      const int from = mixing.hears[i].rank;
      EXPECT_TRUE(at::equal(heard[i], at::full({from + 1}, from, at::kByte))) << from;
    }
    lengths.pop_back();
    EXPECT_ANY_THROW(exchange_with_neighbors(group, mixing, mine, lengths));
  });
}

TEST(Gossip, AveragesAllParametersOfAModelAtOnceInAnyLayoutAndType) {
  replicate(2, [](const Group& group) {
    at::Tensor parameter = at::full({2, 3}, group.rank(), at::kFloat).requires_grad_();
    at::Tensor transposed = at::full({4, 2}, group.rank(), at::kFloat).t();
    at::Tensor half = at::full({7}, 2050 + 4 * group.rank(), at::kHalf);
    gossip(group, {parameter, transposed, half}, 0, {.graph = Graph::kRing});
    EXPECT_TRUE(at::equal(parameter.detach(), at::full({2, 3}, 0.5, at::kFloat)));
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(at::equal(transposed, at::full({2, 4}, 0.5, at::kFloat)));
    EXPECT_TRUE(at::equal(half, at::full({7}, 2052, at::kHalf)));
    gossip(group, at::TensorList{}, 1);
  });
}

TEST(Gossip, DoesNotChangeARankWithoutNeighborsInTheRound) {
  replicate(1, [](const Group& group) {
    at::Tensor x = at::ones({3});
    gossip(group, x, 0);
    EXPECT_TRUE(at::equal(x, at::ones({3})));
  });
}

TEST(Gossip, RejectsTensorsThatCannotBeAveragedOrDifferInLength) {
  replicate(1, [](const Group& group) {
    EXPECT_THROW(gossip(group, at::ones({3}, at::kLong), 0), Error);
    EXPECT_THROW(gossip(group, at::ones({3}), -1), Error);
  });
  try {
    replicate(
        2, [](const Group& group) { gossip(group, at::ones({3 + group.rank()}), 0); }, 20s);
    FAIL() << "lengths that differ";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
  }
}

// Without the abort, the neighbor's message of this round would count in the next round.
TEST(Gossip, ThatFailsWhenItHasSentEndsTheGroup) {
  replicate(
      2,
      [](const Group& group) {
        const auto mixing = schedule::mixing({Graph::kRing, 2}, group.rank(), 0);
        const std::vector<std::int64_t> negative{-1};
        EXPECT_THROW(exchange_with_neighbors(group, mixing, at::ones({3}), negative), c10::Error);
        EXPECT_THROW(group.barrier(), Error);
      },
      20s);
}

}  // namespace
}  // namespace weft::comm
