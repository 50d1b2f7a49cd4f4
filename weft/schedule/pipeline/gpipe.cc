// GPipe: all forwards, then all backwards. A rank is idle only until the first micro-batch arrives
// and while the last one leaves.
//
// Source: Huang and others: GPipe: Efficient training of giant neural networks using pipeline
// parallelism, 2019. With several stages per rank, Lamy-Poirier: Breadth-first pipeline
// parallelism, 2023: all micro-batches go through the rank's first stage, then all go through its
// second. Backwards come by rising micro-batch, not in reverse, because all schedules sum gradients
// in the same order.
#include "weft/schedule/pipeline/internal/algorithms.h"

namespace weft::schedule::pipeline::internal {

Actions forward_only(const Request& q, int rank) {
  Actions actions;
  for (int k = 0; k < q.virtual_stages; ++k) {
    for (int i = 0; i < q.micro_batches; ++i)
      actions.push_back({Work::kForward, i, k * q.ranks + rank});
  }
  return actions;
}

Actions gpipe(const Request& q, int rank) {
  Actions actions = forward_only(q, rank);
  for (int k = q.virtual_stages - 1; k >= 0; --k) {
    for (int i = 0; i < q.micro_batches; ++i)
      actions.push_back({Work::kBackward, i, k * q.ranks + rank});
  }
  return actions;
}

}  // namespace weft::schedule::pipeline::internal
