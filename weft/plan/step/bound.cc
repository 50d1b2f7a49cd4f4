#include "weft/plan/step/bound.h"

#include <algorithm>

#include "weft/plan/step/internal/memory.h"
#include "weft/plan/step/internal/replica.h"

namespace weft::plan {
namespace {

using internal::Replica;
using internal::StageCost;

}  // namespace

// The rank with the most work runs its micro-batches one after the other. Before its first forward,
// the first micro-batch passes the stages before it; after the last backward, gradients are
// reduced.
Bound bound_of(const Job& job) {
  check(job.layout, devices(job.cluster));
  internal::check(job.measured, devices(job.cluster));
  const Replica replica(job, 0);
  const double m = micro_batches_of(job.layout);
  Bound bound;
  double before = 0;
  std::vector<double> work(static_cast<std::size_t>(job.layout.pp)), first(work.size(), -1);
  for (const StageCost& stage : replica.stages()) {
    const auto rank = static_cast<std::size_t>(stage.rank);
    if (first[rank] < 0) first[rank] = before;
    work[rank] += m * (stage.total_forward() + stage.total_backward());
    before += stage.total_forward();
  }
  const double share = job.layout.shares.empty()
                           ? 1
                           : *std::min_element(job.layout.shares.begin(), job.layout.shares.end());
  for (std::size_t rank = 0; rank < work.size(); ++rank) {
    const Replica::Sync sync = replica.sync(static_cast<int>(rank));
    const double tail = sync.gradients + sync.sharding + sync.optimizer;
    bound.seconds = std::max(bound.seconds, (first[rank] + work[rank]) * share + tail);
  }
  bound.seconds += internal::step_overhead(job);
  bound.memory = internal::least_memory(job, replica);
  return bound;
}

}  // namespace weft::plan
