// Shares of a batch by speed: what each replica computes in a second, and the shares that follow
// from it (data/balance.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/data/balance.h"
#include "weft/parallel/mesh/mesh.h"

namespace weft::train::internal {

class Speeds {
 public:
  explicit Speeds(const Mesh& mesh);

  // What this rank did since the last rebalance(); seconds: of forward and backward, without
  // waiting.
  void add(std::int64_t samples, double seconds);
  // Collective. Weights of the replicas' shares, the same on all ranks, where they are by a
  // twentieth of an even share or more from those given last (at first: even ones). A replica is as
  // fast as its slowest rank.
  std::optional<std::vector<double>> rebalance();

 private:
  const Group world_;
  std::vector<std::size_t> replica_of_;  // by rank
  data::Balance balance_;
  std::vector<double> given_;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
};

}  // namespace weft::train::internal
