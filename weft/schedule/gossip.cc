#include "weft/schedule/gossip.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/schedule/internal/near_square.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule {
namespace {

using internal::log2_ceil;
using internal::wrap;

constexpr std::array kGraphs = {Graph::kRing, Graph::kGrid, Graph::kExponential,
                                Graph::kOnePeerExponential, Graph::kRandomMatching};
constexpr const char* kNames[] = {"ring", "grid", "exponential", "one_peer_exponential",
                                  "random_matching"};

// Gives equal weights to the rank itself and to all ranks that it hears. Removes duplicates and the
// rank itself from the lists. On every rank, `heard` and `hearers` must have the same length.
Mixing equal_weights(int rank, std::vector<int> heard, std::vector<int> hearers) {
  const auto tidy = [&](std::vector<int>& ranks) {
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    std::erase(ranks, rank);
  };
  tidy(heard);
  tidy(hearers);
  Mixing mixing;
  mixing.self = 1.0 / (1.0 + static_cast<double>(heard.size()));
  for (const int peer : heard) mixing.hears.push_back({peer, mixing.self});
  mixing.sends_to = std::move(hearers);
  return mixing;
}

std::vector<int> grid_neighbors(int world, int rank) {
  const auto [rows, columns, wraps] = internal::near_square(world);
  const int row = rank / columns, column = rank % columns;
  std::vector<int> result;
  for (const int step : {-1, 1}) {
    result.push_back(wrap(row + step, rows) * columns + column);
    result.push_back(row * columns + wrap(column + step, columns));
  }
  return result;
}

// Shuffles the ranks for the round and pairs the first two, the next two, and so on. In an odd
// world, the last rank is its own partner.
std::vector<int> matching(const Gossip& gossip, std::int64_t round) {
  const auto order = permutation(gossip.world, gossip.seed, static_cast<std::uint64_t>(round));
  std::vector<int> partner(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t other = (i ^ 1) < order.size() ? i ^ 1 : i;
    partner[static_cast<std::size_t>(order[i])] = static_cast<int>(order[other]);
  }
  return partner;
}

Mixing exponential(const Gossip& gossip, int rank, int first, int last) {
  std::vector<int> heard, hearers;
  for (int j = first; j < last; ++j) {
    heard.push_back(wrap(rank + (1 << j), gossip.world));
    hearers.push_back(wrap(rank - (1 << j), gossip.world));
  }
  return equal_weights(rank, std::move(heard), std::move(hearers));
}

// Number of rounds after which the graph repeats. Not for kRandomMatching.
int period_of(const Gossip& gossip) {
  return gossip.graph == Graph::kOnePeerExponential ? log2_ceil(gossip.world) : 1;
}

using Vector = std::vector<double>;

void take_out_mean(Vector& x) {
  double mean = 0;
  for (const double value : x) mean += value;
  mean /= static_cast<double>(x.size());
  for (double& value : x) value -= mean;
}

double norm(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// The rounds of a period as one linear map.
class Rounds {
 public:
  Rounds(const Gossip& gossip, int period) {
    for (int t = 0; t < period; ++t) {
      auto& round = rounds_.emplace_back();
      for (int rank = 0; rank < gossip.world; ++rank) round.push_back(mixing(gossip, rank, t));
    }
  }
  Vector forward(Vector x) const {
    for (const auto& round : rounds_) {
      Vector y(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] = round[i].self * x[i];
        for (const Neighbor& n : round[i].hears)
          y[i] += n.weight * x[static_cast<std::size_t>(n.rank)];
      }
      x = std::move(y);
    }
    return x;
  }
  Vector transposed(Vector x) const {
    for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round) {
      Vector y(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] += (*round)[i].self * x[i];
        for (const Neighbor& n : (*round)[i].hears)
          y[static_cast<std::size_t>(n.rank)] += n.weight * x[i];
      }
      x = std::move(y);
    }
    return x;
  }

 private:
  std::vector<std::vector<Mixing>> rounds_;
};

// Power iteration on M^T M, orthogonal to the vector of ones. It starts from random numbers, which
// have a component in every direction.
double largest_singular_value(const Rounds& rounds, int world) {
  constexpr int kMaxSteps = 20'000;
  constexpr double kNothing = 1e-12;  // rounding error of rounds that average exactly
  Random random(/*seed=*/1);
  Vector x(static_cast<std::size_t>(world));
  for (double& value : x) value = random.uniform() - 0.5;
  double value = 0;
  for (int step = 0; step < kMaxSteps; ++step) {
    take_out_mean(x);
    const double length = norm(x);
    for (double& element : x) element /= length;
    Vector y = rounds.forward(x);
    const double next = norm(y);
    if (next < kNothing) return 0;
    if (step > 10 && std::abs(next - value) < 1e-10 * next) return next;
    value = next;
    x = rounds.transposed(std::move(y));
  }
  return value;
}

}  // namespace

Mixing mixing(const Gossip& gossip, int rank, std::int64_t round) {
  const int world = gossip.world;
  WEFT_REQUIRE(world >= 1,
               "gossip among " + std::to_string(world) + " ranks; it must have at least one");
  WEFT_REQUIRE(rank >= 0 && rank < world, "rank " + std::to_string(rank) +
                                              " is outside the world of " + std::to_string(world));
  WEFT_REQUIRE(round >= 0, "a negative round: " + std::to_string(round));
  if (world == 1) return {};
  const int distances = log2_ceil(world);
  const auto both_ways = [&](const std::vector<int>& peers) {
    return equal_weights(rank, peers, peers);
  };
  switch (gossip.graph) {
    case Graph::kRing: return both_ways({wrap(rank - 1, world), wrap(rank + 1, world)});
    case Graph::kGrid: return both_ways(grid_neighbors(world, rank));
    case Graph::kExponential: return exponential(gossip, rank, 0, distances);
    case Graph::kOnePeerExponential: {
      const int distance = static_cast<int>(round % distances);
      return exponential(gossip, rank, distance, distance + 1);
    }
    case Graph::kRandomMatching:
      return both_ways({matching(gossip, round)[static_cast<std::size_t>(rank)]});
  }
  return {};
}

double mixing_rate(const Gossip& gossip) {
  mixing(gossip, 0, 0);  // checks the arguments
  const double world = gossip.world;
  if (gossip.world == 1) return 0;
  if (gossip.graph == Graph::kRandomMatching) {
    // The matrix of a matching is a projection, so E[W^T W] = E[W]. Each pair is drawn with
    // probability 1 / (world - 1), or 1 / world if one rank has no partner. So every deviation from
    // the mean shrinks by the same factor.
    return std::sqrt(gossip.world % 2 == 0 ? (world - 2) / (2 * (world - 1)) : 0.5);
  }
  const int period = period_of(gossip);
  return std::pow(largest_singular_value(Rounds(gossip, period), gossip.world), 1.0 / period);
}

double spectral_gap(const Gossip& gossip) { return 1 - mixing_rate(gossip); }

int rounds_to_thousandth(const Gossip& gossip) {
  const double rate = mixing_rate(gossip);
  if (gossip.world == 1) return 0;
  return rate == 0 ? period_of(gossip)
                   : std::max(1, static_cast<int>(std::ceil(std::log(1e-3) / std::log(rate))));
}

int distinct_rounds(const Gossip& gossip) {
  return gossip.graph == Graph::kRandomMatching ? 3 : std::max(1, period_of(gossip));
}

std::span<const Graph> graphs() { return kGraphs; }
const char* to_string(Graph graph) { return kNames[static_cast<int>(graph)]; }

Graph parse_graph(const std::string& name) {
  std::vector<std::string> names;
  for (const Graph graph : kGraphs) {
    if (name == to_string(graph)) return graph;
    names.emplace_back(to_string(graph));
  }
  const auto near = nearest(name, names);
  WEFT_REQUIRE(false, "unknown gossip graph '" + name + "'" +
                          (near ? "; did you mean '" + *near + "'?" : ""));
  return Graph::kRing;
}

}  // namespace weft::schedule
