// Copies the state of training to memory every few steps, for recovery from a lost rank.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/checkpoint/sharded.h"
#include "weft/comm/group.h"
#include "weft/elastic/state_copies.h"

namespace weft::elastic {

class Copying {
 public:
  // `every`: steps between copies. 0: from the measured cost. Collective.
  Copying(const Group& world, std::int64_t every);

  // Records the time that a step took on this rank.
  void add_step(double seconds);
  bool is_due(std::int64_t step) const { return interval_.is_due(step); }
  // Copies this rank's part of the state after `shards.step` steps. Returns rank 0's `wish`, a
  // number that is not negative, on all ranks. Collective.
  int take(const checkpoint::Shards& shards, int wish = 0);
  std::shared_ptr<const StateCopies> copies() const { return copies_; }

 private:
  const Group world_;
  const std::shared_ptr<StateCopies> copies_;
  CopyInterval interval_;
  double seconds_ = 0;  // of the steps since the last copy
  int steps_ = 0, taken_ = 0;
};

}  // namespace weft::elastic
