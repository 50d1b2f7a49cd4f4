// 1F1B: a rank starts as many micro-batches as there are ranks from it to the last one. Then it
// runs one backward for each forward, so it never holds more micro-batches than that.
//
// Source: Narayanan, Phanishayee, Shi, Chen, Zaharia: Memory-efficient pipeline-parallel DNN
// training, 2021 (PipeDream-flush).
#include <algorithm>

#include "weft/schedule/pipeline/internal/algorithms.h"

namespace weft::schedule::pipeline::internal {

Actions one_forward_one_backward(const Request& q, int rank) {
  const int ahead = std::min(q.micro_batches, q.ranks - rank - 1);
  Actions actions;
  for (int i = 0; i < q.micro_batches + ahead; ++i) {
    if (i < q.micro_batches) actions.push_back({Work::kForward, i, rank});
    if (i >= ahead) actions.push_back({Work::kBackward, i - ahead, rank});
  }
  return actions;
}

}  // namespace weft::schedule::pipeline::internal
