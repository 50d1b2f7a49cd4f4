#include "weft/plan/search/no_layout.h"

#include "weft/base/text/numbers.h"

namespace weft::plan {

std::string why_no_layout(const Found& found, const Job& job, double headroom) {
  const std::string cluster = describe(job.cluster);
  if (!found.complete)
    return "the time of the search ran out before it found a layout of " + cluster +
           " that holds the model";
  if (found.nearest.empty())
    return "no layout of " + cluster + " divides a batch of " +
           std::to_string(job.layout.global_batch) +
           " samples and the blocks of the model over all " + std::to_string(devices(job.cluster)) +
           " devices";
  const LayoutCandidate& nearest = found.nearest.front();
  const std::size_t rank = nearest.step.fullest();
  const double needs = nearest.step.memory[rank].total(), has = nearest.step.capacity[rank];
  std::string text = "no layout of " + cluster + " holds the model; the nearest (" +
                     describe(nearest.layout) + ") needs ";
  text += formatted("%.4g GiB of a device, which has %.4g GiB", needs / kGiB, has / kGiB);
  if (headroom > 0) text += formatted(", of which %g %% stay free", 100 * headroom);
  return text + formatted(": %.4g GiB short", (needs - has * (1 - headroom)) / kGiB);
}

std::string nodes_that_fit(const Job& job, SearchOptions options) {
  if (job.cluster.nodes.size() != 1) return "";
  options.keep = 1;
  options.refine = false;
  for (int factor = 2; factor <= 64; factor *= 2) {
    Job larger = job;
    larger.cluster = with_nodes(job.cluster, num_nodes(job.cluster) * factor);
    const Found found = search(larger, options);
    if (found.best.empty()) continue;
    return "on " + std::to_string(num_nodes(larger.cluster)) + " nodes, " +
           describe(found.best.front().layout) + " fits";
  }
  return "";
}

}  // namespace weft::plan
