// Gossip: averaging with neighbors in place of all ranks. A round costs each rank a message or a
// few, no matter how many ranks there are, and brings the ranks' values nearer to their average by
// a factor that depends on who talks to whom.
//
// In round t rank i takes self x_i + the sum of weight_j x_j over those it hears. The weights of a
// rank add up to one, and so do those that are given to it (the matrix W_t is doubly stochastic):
// the average over all ranks stays what it is. Values are what the caller says: weights of a model,
// or a step of decentralised SGD (Lian and others 2017). All functions are pure; any thread may
// call them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::schedule {

enum class Graph : std::uint8_t {
  kRing,  // both neighbors
  kGrid,  // all neighbors in a grid nearest to a square that wraps round
  // hears the ranks 1, 2, 4, 8 … places on: Assran and others: Stochastic Gradient Push, 2019
  kExponential,
  // one of these in turn, in round t the one 2^(t mod log2 W) places on: Ying and others 2021
  kOnePeerExponential,
  // pairs drawn anew in every round: Boyd, Ghosh, Prabhakar, Shah: Randomized gossip algorithms,
  // 2006
  kRandomMatching,
};

struct Gossip {
  Graph graph = Graph::kRing;
  int world = 2;
  std::uint64_t seed = 0;  // kRandomMatching: the same on all ranks
};

struct Neighbor {
  int rank = 0;
  double weight = 0;
  bool operator==(const Neighbor&) const = default;
};

// What one rank does in one round: keeps `self` of its own, adds what it hears, and sends its value
// to those who hear it.
struct Mixing {
  double self = 1;
  std::vector<Neighbor> hears;
  std::vector<int> sends_to;
};

// O(neighbors); kRandomMatching O(world). Throws Error(kInvalidArgument) for a world below 1, a
// rank outside of it, a negative round.
Mixing mixing(const Gossip& gossip, int rank, std::int64_t round);

// The factor by which a round, in the long run, brings the ranks' values nearer to their average,
// in the root of the summed squares, at worst: 0 where a number of rounds makes all equal, 1 where
// they never meet. For a fixed graph the second largest singular value of W; for
// kOnePeerExponential the geometric mean over its period; for kRandomMatching the root of the
// second eigenvalue of E[W^T W], which is how the expected square shrinks. Found by iteration on
// the rounds that mixing() gives, to about six digits: O(world) a step.
double mixing_rate(const Gossip& gossip);
// 1 - mixing_rate: the larger, the fewer rounds.
double spectral_gap(const Gossip& gossip);
// After how many rounds at that rate the values are a thousand times nearer to their average; where
// rounds make all equal, how many.
int rounds_to_thousandth(const Gossip& gossip);
// How many rounds there are to look at: those until they come again; of kRandomMatching, where they
// never do, three.
int distinct_rounds(const Gossip& gossip);

std::span<const Graph> graphs();
// "ring", "grid", "exponential", "one_peer_exponential", "random_matching".
const char* to_string(Graph graph);
// Throws Error(kInvalidArgument) naming the nearest known name.
Graph parse_graph(const std::string& name);

}  // namespace weft::schedule
