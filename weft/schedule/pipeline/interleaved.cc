// Interleaved 1F1B: each rank has v stages, so a micro-batch passes each rank v times, and the
// pipeline fills in 1/v of the time.
//
// Source: Narayanan and others: Efficient large-scale language model training on GPU clusters using
// Megatron-LM, 2021, section 2.2. Micro-batches go in groups. A group passes all stages of the rank
// before the next group begins. The paper uses groups of p, so m must be a multiple of p. Larger
// groups work as well: a micro-batch returns to its first rank after p stages, and a group of at
// least p keeps the rank busy until then. So m is cut into m/p groups that differ by at most one.
// With fewer than p micro-batches, the order for p is made and the missing ones are left out. A
// correct order stays correct without them.
#include <algorithm>

#include "weft/schedule/pipeline/internal/algorithms.h"

namespace weft::schedule::pipeline::internal {
namespace {

// All groups in turn. Each passes the rank's stages, upwards for forwards and downwards for
// backwards.
Actions in_groups(const Request& q, int rank, Work work) {
  const int made = std::max(q.micro_batches, q.ranks);
  const int groups = made / q.ranks;
  Actions actions;
  for (int g = 0, first = 0; g < groups; ++g) {
    const int size = made / groups + (g < made % groups ? 1 : 0);
    for (int k = 0; k < q.virtual_stages; ++k) {
      const int local = work == Work::kForward ? k : q.virtual_stages - 1 - k;
      for (int i = first; i < first + size; ++i)
        actions.push_back({work, i, local * q.ranks + rank});
    }
    first += size;
  }
  return actions;
}

}  // namespace

int largest_group(const Request& q) {
  const int made = std::max(q.micro_batches, q.ranks);
  const int groups = made / q.ranks;
  return (made + groups - 1) / groups;
}

Actions interleaved(const Request& q, int rank) {
  const Actions forwards = in_groups(q, rank, Work::kForward);
  const Actions backwards = in_groups(q, rank, Work::kBackward);
  const std::size_t total = forwards.size();
  const int ahead = (q.virtual_stages - 1) * largest_group(q) + 2 * (q.ranks - rank - 1);
  const std::size_t warm_up = std::min(total, static_cast<std::size_t>(ahead));
  Actions actions;
  for (std::size_t i = 0; i < total + warm_up; ++i) {
    if (i < total) actions.push_back(forwards[i]);
    if (i >= warm_up) actions.push_back(backwards[i - warm_up]);
  }
  std::erase_if(actions,
                [&](const Action& action) { return action.micro_batch >= q.micro_batches; });
  return actions;
}

}  // namespace weft::schedule::pipeline::internal
