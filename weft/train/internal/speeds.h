// Measures the samples per second of each replica and derives its share of a batch
// (data/balance.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/data/balance.h"
#include "weft/parallel/mesh/mesh.h"

namespace weft::train::internal {

class Speeds {
 public:
  // `smallest_share`: of a replica, as a fraction of an even share, in [0, 1].
  explicit Speeds(const Mesh& mesh, double smallest_share = data::BalanceOptions{}.smallest_share);

  // Adds work of this rank. `seconds`: time of forward and backward, without waiting for other
  // ranks.
  void add(std::int64_t samples, double seconds);
  // New weights of the replicas' shares, the same on all ranks. nullopt if every weight is within
  // 5% of an even share of the last one returned (at first: even weights). A replica is as fast as
  // its slowest rank. Collective.
  std::optional<std::vector<double>> rebalance();

 private:
  const Group world_;
  std::vector<std::size_t> replica_of_;  // indexed by rank
  data::Balance balance_;
  std::vector<double> given_;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
};

}  // namespace weft::train::internal
