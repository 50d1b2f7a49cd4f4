#include "tools/docs/internal/race.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "weft/plan/collectives/choice.h"
#include "weft/plan/collectives/simulate.h"

namespace weft::docs::internal {
namespace {

using schedule::Algorithm;
using schedule::Collective;
using schedule::Request;

constexpr std::int64_t kElement = 4;  // bytes of an f32

bool has_blocks(Collective c) {
  return c != Collective::kAllReduce && c != Collective::kBroadcast && c != Collective::kReduce;
}

struct Entrant {
  Algorithm algorithm;
  std::optional<Algorithm> across;
  std::string name;
};

// The algorithms to compare. On a flat topology, the hierarchical algorithm equals its algorithm
// between groups, so it is left out.
std::vector<Entrant> entrants(Collective collective, const schedule::Topology& topology) {
  std::vector<Entrant> result;
  for (const Algorithm algorithm : schedule::algorithms()) {
    const bool hierarchical = algorithm == Algorithm::kHierarchical;
    if (algorithm == Algorithm::kDirect || !supports(algorithm, collective)) continue;
    if (hierarchical && topology.num_levels() == 1) continue;
    result.push_back({algorithm, std::nullopt, to_string(algorithm)});
    if (!hierarchical || has_blocks(collective)) continue;
    const Algorithm shorter =
        collective == Collective::kAllReduce ? Algorithm::kRecursiveDoubling : Algorithm::kBinomial;
    result.push_back(
        {algorithm, shorter, std::string("hierarchical, ") + to_string(shorter) + " across"});
  }
  return result;
}

// Predicts the time over TCP on a flat topology; otherwise simulates the links of the topology.
double seconds_of(const Request& q) {
  if (q.topology->num_levels() > 1) return plan::simulate(q, kElement).seconds;
  return plan::predict(q, kElement, plan::default_table(), plan::Transport::kTcp);
}

}  // namespace

Winner winner(Collective collective, const SharedTopology& topology, std::int64_t bytes) {
  std::optional<Winner> best;
  for (const Entrant& entrant : entrants(collective, *topology)) {
    Request q{.collective = collective, .algorithm = entrant.algorithm, .world = topology->world()};
    q.topology = topology;
    q.across = entrant.across;
    q.count = std::max<std::int64_t>(1, bytes / kElement / (has_blocks(collective) ? q.world : 1));
    const double seconds = seconds_of(q);
    if (!best || seconds < best->seconds) best = {entrant.algorithm, entrant.name, seconds};
  }
  return *best;
}

std::string duration(double seconds) {
  const bool micro = seconds < 0.9995e-3, whole = seconds >= 0.9995;
  const double value = seconds * (micro ? 1e6 : whole ? 1 : 1e3);
  char text[32];
  std::snprintf(text, sizeof text,
                value < 9.995   ? "%.2f %s"
                : value < 99.95 ? "%.1f %s"
                                : "%.0f %s",
                value,
                micro   ? "µs"
                : whole ? "s"
                        : "ms");
  return text;
}

std::string byte_size(std::int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; unit < 3 && bytes >= 1024; ++unit) bytes /= 1024;
  return std::to_string(bytes) + " " + units[unit];
}

}  // namespace weft::docs::internal
