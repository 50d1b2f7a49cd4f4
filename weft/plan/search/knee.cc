#include "weft/plan/search/knee.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

// The largest exposed part of a step, and what would make it smaller.
std::string limit_of(const Parts& p) {
  const std::pair<double, const char*> kinds[] = {
      {p.bubble, "the pipeline's bubble; more micro-batches (a larger batch) would help"},
      {p.tensor, "tensor parallelism; faster links inside a node would help"},
      {p.context, "context parallelism; faster links would help"},
      {p.expert, "expert parallelism; faster links between nodes would help"},
      {p.pipeline, "messages between stages; faster links between nodes would help"},
      {p.gradients + p.sharding,
       "gradients and shards; a larger batch, faster links between nodes or a codec would help"},
      {p.optimizer, "the optimizer; sharding its state would help"}};
  return std::max_element(std::begin(kinds), std::end(kinds))->second;
}

KneePoint point_of(const Job& job, const SearchOptions& options, int nodes, Parts& parts) {
  Job smaller = job;
  smaller.cluster = with_nodes(job.cluster, nodes);
  KneePoint point{.nodes = nodes, .devices = devices(smaller.cluster)};
  const Found found = search(smaller, options);
  point.complete = found.complete;
  if (found.best.empty()) return point;
  const LayoutCandidate& best = found.best.front();
  point.seconds = best.step.seconds;
  point.samples_per_s = best.step.samples_per_s;
  point.layout = describe(best.layout);
  parts = best.step.parts;
  return point;
}

}  // namespace

Knee knee_of(std::vector<KneePoint> points) {
  Knee knee{.points = std::move(points)};
  double first = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < knee.points.size(); ++i) {
    KneePoint& point = knee.points[i];
    if (point.seconds <= 0) continue;
    if (first == 0) first = point.samples_per_s / point.devices;
    point.efficiency = point.samples_per_s / point.devices / first;
    const KneePoint& before = knee.points[last];
    const double doublings = std::log2(static_cast<double>(point.nodes) / before.nodes);
    const bool helps = point.samples_per_s >= std::pow(1.5, doublings) * before.samples_per_s;
    if (knee.nodes == 0 || (helps && last + 1 == i)) {
      knee.nodes = point.nodes;
      last = i;
    }
  }
  return knee;
}

Knee find_knee(const Job& job, const SearchOptions& options, int nodes) {
  std::vector<int> counts;
  for (int n = nodes; n >= 1 && n * 4 >= nodes; n /= 2) counts.insert(counts.begin(), n);
  const bool grows = job.cluster.nodes.size() == 1;
  for (int n = nodes * 2; grows && n <= nodes * 4; n *= 2) counts.push_back(n);
  SearchOptions each = options;
  each.keep = 1;
  each.refine = false;
  each.seconds = options.seconds / static_cast<double>(counts.size());
  std::vector<Parts> parts(counts.size());
  std::vector<KneePoint> points;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    try {
      points.push_back(point_of(job, each, counts[i], parts[i]));
    } catch (const Error&) {  // no layout fits so many nodes: a point without a time
      points.push_back({.nodes = counts[i]});
    }
  }
  Knee knee = knee_of(std::move(points));
  if (knee.nodes == 0) {
    const bool complete = std::all_of(knee.points.begin(), knee.points.end(),
                                      [](const KneePoint& point) { return point.complete; });
    knee.text = complete ? "the model fits on none of these numbers of nodes"
                         : "the time ran out before a layout was found that fits on any of these "
                           "numbers of nodes";
    return knee;
  }
  const auto at = std::find(counts.begin(), counts.end(), knee.nodes);
  const auto last = static_cast<std::size_t>(at - counts.begin());
  const std::size_t beyond = std::min(last + 1, knee.points.size() - 1);
  knee.text = "up to " + counted(knee.nodes, "node") + ", doubling them gives at least 1.5x";
  const KneePoint& next = knee.points[beyond];
  const std::string there = "; on " + std::to_string(next.nodes) + " nodes, ";
  knee.text += beyond == last     ? "; more nodes were not tried"
               : next.seconds > 0 ? "; beyond, the limit is " + limit_of(parts[beyond])
               : next.complete    ? there + "no layout fits"
                                  : there + "the time ran out before a layout was found that fits";
  return knee;
}

}  // namespace weft::plan
