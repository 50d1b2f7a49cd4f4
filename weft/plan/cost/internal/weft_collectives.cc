#include "weft/plan/cost/internal/weft_collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "weft/plan/collectives/simulate.h"
#include "weft/schedule/schedule.h"

namespace weft::plan::internal {
namespace {

using schedule::Algorithm;
using schedule::Collective;

constexpr double kReduction = 4e9;  // Bytes/s that a core adds up.
constexpr std::size_t kElement = 4;

schedule::Topology topology_of(const GroupShape& g) {
  const schedule::Link inside = {std::max(g.latency, 1e-7), std::max(g.intra, 1e3), kReduction};
  const schedule::Link outside = {
      std::max(g.inter.latency, 1e-7),
      std::max(g.inter.bandwidth * g.inter.share / std::max(1, g.sharing), 1e3), kReduction};
  if (g.nodes == 1) return schedule::Topology(g.ranks, {{schedule::Scope::kHost, inside, {}}});
  std::vector<int> host;
  for (int rank = 0; rank < g.ranks; ++rank) host.push_back(rank * g.nodes / g.ranks);
  return schedule::Topology(
      g.ranks, {{schedule::Scope::kCluster, outside, {}}, {schedule::Scope::kHost, inside, host}});
}

Collective collective_of(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kAllReduce: return Collective::kAllReduce;
    case ExchangeKind::kReduceScatter: return Collective::kReduceScatter;
    case ExchangeKind::kAllToAll: return Collective::kAllToAll;
    default: return Collective::kAllGather;
  }
}

// Ranks of one host read each other's memory: each reduces (or copies) its share of what it needs,
// at the speed of memory, between two meetings (docs/architecture.md).
double in_shared_memory(ExchangeKind kind, double bytes, const GroupShape& g) {
  const double n = g.ranks, passes = kind == ExchangeKind::kAllReduce ? 2 : 1;
  return 2 * n * g.latency + passes * (n - 1) / n * bytes / g.intra;
}

double played(ExchangeKind kind, double bytes, const GroupShape& g) {
  if (g.nodes == 1 && g.shared_memory) return in_shared_memory(kind, bytes, g);
  schedule::Request request{.collective = collective_of(kind), .world = g.ranks};
  request.topology = std::make_shared<const schedule::Topology>(topology_of(g));
  const bool whole = kind == ExchangeKind::kAllReduce;
  request.count = std::max<std::int64_t>(
      1, std::llround(bytes / static_cast<double>(kElement) / (whole ? 1 : g.ranks)));
  double best = std::numeric_limits<double>::infinity();
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling,
                                    Algorithm::kRecursiveDoubling, Algorithm::kHierarchical}) {
    if (!schedule::supports(algorithm, request.collective)) continue;
    if (algorithm == Algorithm::kHierarchical && g.nodes == 1) continue;
    request.algorithm = algorithm;
    best = std::min(best, simulate(request, kElement).seconds);
  }
  return best;
}

}  // namespace

double weft_seconds(ExchangeKind kind, double bytes, const GroupShape& g) {
  // All that played() depends on.
  using Key = std::tuple<ExchangeKind, std::int64_t, int, int, int, bool, double, double, double,
                         double, double>;
  static std::mutex mutex;
  static std::map<Key, double> known;  // guarded by mutex
  // Sizes within 1 % share a simulation.
  const auto size = std::llround(std::log(std::max(bytes, 1.0)) * 100);
  const Key key = {
      kind,    size,      g.ranks,           g.nodes,         g.sharing,    g.shared_memory,
      g.intra, g.latency, g.inter.bandwidth, g.inter.latency, g.inter.share};
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  const double seconds = played(kind, bytes, g);
  const std::lock_guard lock(mutex);
  if (known.size() > 100'000) known.clear();
  return known[key] = seconds;
}

}  // namespace weft::plan::internal
