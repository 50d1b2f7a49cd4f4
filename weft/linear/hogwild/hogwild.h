// Hogwild!: stochastic gradient descent by several workers on shared weights, without locks.
//
// Source: Niu, Recht, Ré, Wright, "Hogwild!: a lock-free approach to parallelizing stochastic
// gradient descent", NIPS 2011. Workers are threads of a rank, and ranks of a host that share
// memory. Each worker visits its rows in random order. For a row i with the prediction z = x_i·w:
//
//   w_j := (w_j - η φ'(z, y_i) x_ij) / (1 + η l2 n / n_j)     for the columns j of the row
//
// n_j is the number of rows with column j, so the regularizer is divided over the rows as in the
// paper's equation 3; the division is its implicit step, which is stable for every η. The step η
// is `step` / mean |x_i|² in the first epoch and falls by `decay` after each.
//
// Races. A worker reads and writes a weight by relaxed atomics (std::atomic_ref), so a race is
// defined behavior: a read gives an older or a newer value, and of two updates at the same time one
// may be lost. The paper bounds the effect for sparse rows. On x86 and ARM a relaxed access is an
// ordinary move. It costs the vectorization of the loop, which has scattered accesses anyway:
// measured, one thread takes 0 to 3 % longer than with plain floats.
//
// What limits the speed: a processor that writes a weight takes its cache line from the others. A
// row touches about one line for each of its columns, so with one shared copy two workers may well
// be slower than one. Clusters solve this (token_ring.h): each cluster of `cluster_size` workers
// has its own copy, and the copies exchange their changes in turn. The first clusters of several
// hosts form a ring of their own, by messages. At the end of an epoch, all copies become their
// mean, weighted by the rows of their clusters.
//
// `locks` are the paper's baselines: a lock around each row's update, or a lock for each 16 columns
// (its AIG).
//
// Sends: between hosts 2 float32 for each weight an exchange, and an all-reduce of one float64 for
// each weight an epoch. Within a host nothing. Memory: 8 bytes for each weight and cluster.
//
// Limits: no certificate: SGD has no dual. l1 is not supported. The result depends on the timing of
// the workers, so runs do not repeat, except with one worker. A host whose first worker has visited
// its rows keeps the token of the hosts, so their exchanges by messages end until the next epoch.
#pragma once

#include <cstddef>
#include <vector>

#include "weft/linear/hogwild/hogwild_options.h"
#include "weft/linear/hogwild/token_ring.h"
#include "weft/linear/solve/ranks.h"
#include "weft/linear/solve/sdca.h"

namespace weft::linear {

// This rank's place on its host. The default is a rank alone on its host.
struct HostPlace {
  // Zeroed memory of hogwild_memory() bytes that the ranks of the host share. Null: the rank has
  // the host for itself, and takes memory of its own.
  std::byte* memory = nullptr;
  // Number of this rank's first worker, and of all workers of the host.
  int first_worker = 0, workers = 0;  // 0 workers: those of this rank.
  // Messages of the host's first rank to the neighboring hosts. Null: there is one host, or this
  // is another rank.
  RingMessages* messages = nullptr;
  int host = 0, hosts = 1;
};

// Bytes of HostPlace::memory for so many workers.
std::size_t hogwild_memory(std::size_t weights, int workers, const HogwildOptions& options);

struct HogwildResult {
  std::vector<double> weights;
  double objective = 0;
};

// Trains `weights` weights. Collective: all ranks pass the same options, number of weights and
// objective, and the rows that each holds. Every rank gets the same weights, the mean of all
// clusters, weighted by their rows. Throws Error(kInvalidArgument) as check(), for data without
// rows, and if the objective stops being finite (`step` too large). Throws Error(kTimeout) if a
// lock is not released for a minute (its rank was killed). Throws what Ranks and RingMessages
// throw.
HogwildResult hogwild(const RowProblem& problem, std::size_t weights, Ranks& ranks,
                      const HostPlace& place, const HogwildOptions& options);

}  // namespace weft::linear
