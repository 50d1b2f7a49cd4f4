// Where a run is.
#pragma once

#include <cstdint>

namespace weft::train::internal {

// What the run has left out so far.
struct LeftOut {
  std::int64_t skipped = 0;  // steps
  std::int64_t dropped = 0;  // gradients of backup workers
};

struct RunCount {
  std::int64_t step = 0, epoch = 0;
  std::int64_t in_epoch = 0;     // batches of this epoch so far
  std::int64_t epoch_steps = 0;  // batches of this epoch; a change of the batch changes it
  std::int64_t passes = 1;       // batches of a step (batch_schedule.h)
  double epoch_loss = 0, epoch_samples = 0;  // the samples whose losses are in epoch_loss

  bool at_end_of_epoch() const { return in_epoch == epoch_steps; }
  // Batches so far, as if every epoch had `per_epoch`: those that this epoch still has are left.
  std::int64_t batches(std::int64_t per_epoch) const {
    return (epoch + 1) * per_epoch - (epoch_steps - in_epoch);
  }
  // Epochs so far, with the fraction of this one.
  double epochs() const {
    return static_cast<double>(epoch) +
           static_cast<double>(in_epoch) / static_cast<double>(epoch_steps);
  }
};

}  // namespace weft::train::internal
