// Gossip: each rank averages its values with a few neighbors instead of with all ranks. A round
// costs each rank at most four messages (kExponential: log2 of the world size). It brings the
// ranks' values closer to their average, by a factor that depends on the graph.
//
// In round t, rank i computes self * x_i + the sum of weight_j * x_j over the neighbors that it
// hears. The weights of a rank add up to one, and so do the weights that others give to it (the
// matrix W_t is doubly stochastic). So the average over all ranks does not change. The caller
// chooses the values: model weights, or an update of decentralized SGD (Lian and others 2017). All
// functions are pure; any thread may call them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::schedule {

enum class Graph : std::uint8_t {
  // Both neighbors in a ring.
  kRing,
  // All neighbors in a torus that is as close to a square as possible.
  kGrid,
  // The ranks 1, 2, 4, 8 … places ahead. Assran and others: Stochastic Gradient Push, 2019.
  kExponential,
  // One neighbor of kExponential per round: in round t the rank 2^(t mod ceil(log2 W)) places
  // ahead. Ying and others 2021.
  kOnePeerExponential,
  // New random pairs in every round. Boyd, Ghosh, Prabhakar, Shah: Randomized gossip algorithms,
  // 2006.
  kRandomMatching,
};

struct Gossip {
  Graph graph = Graph::kRing;
  int world = 2;
  std::uint64_t seed = 0;  // Seed of kRandomMatching; it must be equal on all ranks.
};

struct Neighbor {
  int rank = 0;
  double weight = 0;
  bool operator==(const Neighbor&) const = default;
};

// One rank's part in one round. The rank multiplies its own value by `self`, adds the weighted
// values that it hears, and sends its value to the ranks in `sends_to`.
struct Mixing {
  double self = 1;
  std::vector<Neighbor> hears;
  std::vector<int> sends_to;
};

// Returns a rank's part in a round, in O(neighbors) time (kRandomMatching: O(world)). Throws
// Error(kInvalidArgument) for a world below 1, a rank outside the world, or a negative round.
Mixing mixing(const Gossip& gossip, int rank, std::int64_t round);

// Factor by which one round shrinks the distance of the ranks' values from their average (the root
// of the summed squares), in the long run and in the worst case. 0: a finite number of rounds makes
// all values equal. 1: the values never converge.
//
// For a fixed graph it is the second largest singular value of W. For kOnePeerExponential it is the
// geometric mean over one period. For kRandomMatching it is the square root of the second largest
// eigenvalue of E[W^T W], which is the factor of the expected square, in closed form. The other
// graphs use power iteration over the rounds that mixing() returns, to about six digits. A step
// costs as many operations as one period has messages.
double mixing_rate(const Gossip& gossip);
// 1 - mixing_rate(). The larger it is, the fewer rounds are needed.
double spectral_gap(const Gossip& gossip);
// Number of rounds at that rate after which the values are a thousand times closer to their
// average. If a finite number of rounds makes all values equal, returns that number.
int rounds_to_thousandth(const Gossip& gossip);
// Number of different rounds. 3 for kRandomMatching, whose rounds never repeat.
int distinct_rounds(const Gossip& gossip);

std::span<const Graph> graphs();
// "ring", "grid", "exponential", "one_peer_exponential", "random_matching".
const char* to_string(Graph graph);
// Parses what to_string() returns. Throws Error(kInvalidArgument), naming the nearest known name.
Graph parse_graph(const std::string& name);

}  // namespace weft::schedule
