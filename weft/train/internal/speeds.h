// train.balance = "speed": what each rank computes in a second, and the shares of the batches that follow from it (data/balance.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/data/balance.h"

namespace weft::train::internal {

class Speeds {
 public:
  explicit Speeds(Group world) : world_(std::move(world)), balance_(world_.size()), given_(balance_.weights()) {}

  // What this rank did since the last rebalance(); seconds: of forward and backward, without waiting.
  void add(std::int64_t samples, double seconds);
  // Collective. Weights of the ranks' shares, the same on all of them, where they are by a twentieth of an even share or more from those
  // given last (at first: even ones).
  std::optional<std::vector<double>> rebalance();

 private:
  const Group world_;
  data::Balance balance_;
  std::vector<double> given_;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
};

}  // namespace weft::train::internal
