#include "weft/train/planner/internal/plan_candidates.h"

#include <algorithm>
#include <set>
#include <utility>

#include "weft/base/text/numbers.h"
#include "weft/plan/search/no_layout.h"
#include "weft/train/planner/planning.h"

namespace weft::train::internal {
namespace {

constexpr std::size_t kMaxTrials = 6;
constexpr double kWorthTrying = 1.5;  // Times the best predicted step.
constexpr int kMaxMicroBatch = 4096;  // As plan/search.

std::string shortage(const plan::Layout& layout, const plan::Step& step) {
  const std::size_t rank = step.fullest();
  const double needs = step.memory[rank].total(), has = step.capacity[rank];
  return plan::describe(layout) +
         formatted(", needs %.4g GiB of a rank, which has %.4g GiB: %.4g GiB short",
                   needs / plan::kGiB, has / plan::kGiB, std::max(0.0, needs - has) / plan::kGiB);
}

}  // namespace

// A batch norm over features needs two samples.
plan::Space space_for(const Config& config, bool is_recipe, const plan::Job& job) {
  if (is_recipe) return space_of(config);
  plan::Space space;
  space.tp = space.cp = space.ep = false;
  space.recomputes = {plan::Recompute::kNone, plan::Recompute::kFull};
  const std::int64_t batch = job.layout.global_batch;
  const int ranks = plan::devices(job.cluster);
  for (int size = 2; size <= kMaxMicroBatch && size <= batch; size *= 2)
    space.micro_batches.push_back(size);
  for (int replicas = 1; replicas <= ranks; ++replicas)
    if (ranks % replicas == 0 && batch / replicas <= kMaxMicroBatch)
      space.micro_batches.push_back(static_cast<int>(batch / replicas));
  std::sort(space.micro_batches.begin(), space.micro_batches.end());
  space.micro_batches.erase(std::unique(space.micro_batches.begin(), space.micro_batches.end()),
                            space.micro_batches.end());
  return space;
}

void prune(std::vector<PlannedLayout>& layouts) {
  std::stable_sort(
      layouts.begin(), layouts.end(),
      [](const PlannedLayout& a, const PlannedLayout& b) { return a.seconds < b.seconds; });
  std::vector<PlannedLayout> first, others;
  std::set<std::string> seen;
  for (PlannedLayout& one : layouts) {
    if (one.seconds > kWorthTrying * layouts.front().seconds) break;
    (seen.insert(one.codec).second ? first : others).push_back(one);
  }
  first.insert(first.end(), others.begin(), others.end());
  if (first.size() > kMaxTrials) first.resize(kMaxTrials);
  layouts = std::move(first);
}

std::string too_large(const plan::Found& found, const plan::Job& job) {
  const std::string text = "parallel.plan = \"auto\": " +
                           plan::why_no_layout(found, job, plan::SearchOptions{}.headroom);
  if (!found.complete) return text + "; set the axes yourself";
  return found.nearest.empty() ? text + "; use another number of ranks" : text;
}

std::string does_not_fit(const plan::Layout& layout, const plan::Step& step,
                         const plan::Found& found) {
  const std::string text = "parallel.plan = \"predict\": " + shortage(layout, step);
  if (!found.best.empty())
    return text + "; this fits: " + plan::describe(found.best.front().layout);
  return text + (found.complete ? "; no other layout fits either; use more ranks or a smaller batch"
                                : "; the time ran out before another layout was found that fits");
}

}  // namespace weft::train::internal
