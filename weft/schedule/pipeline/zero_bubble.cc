// Zero bubble, H1 and H2: no rank waits for the gradient of the weights, so computing it later
// fills the idle time at the end.
//
// Source: Qi, Wan, Huang, Lin: Zero bubble pipeline parallelism, 2023, section 2. Both are 1F1B
// with backwards in two parts. Rank r starts `ahead` micro-batches before its first backward, and
// keeps `behind` backward-weights for the end:
//   H1   ahead p-r, behind r. Every rank holds p unfinished micro-batches, as many as the first
//        rank of 1F1B.
//   H2   ahead 2(p-r)-1, behind 2r. The forwards last until the first gradient comes, and ranks end
//        one after the other as they began.
#include <algorithm>

#include "weft/schedule/pipeline/internal/algorithms.h"

namespace weft::schedule::pipeline::internal {
namespace {

Actions split(const Request& q, int rank, int ahead, int behind) {
  const int m = q.micro_batches;
  const int before = std::min(m, ahead - 1);
  Actions actions;
  for (int i = 0; i < before; ++i) actions.push_back({Work::kForward, i, rank});
  for (int i = 0; i < m + behind; ++i) {
    if (before + i < m) actions.push_back({Work::kForward, before + i, rank});
    if (i < m) actions.push_back({Work::kBackwardInput, i, rank});
    if (i >= behind) actions.push_back({Work::kBackwardWeight, i - behind, rank});
  }
  return actions;
}

}  // namespace

Actions zero_bubble_h1(const Request& q, int rank) { return split(q, rank, q.ranks - rank, rank); }
Actions zero_bubble_h2(const Request& q, int rank) {
  return split(q, rank, 2 * (q.ranks - rank) - 1, 2 * rank);
}

}  // namespace weft::schedule::pipeline::internal
