#include "weft/plan/step/internal/site.h"

#include <algorithm>
#include <cmath>

namespace weft::plan::internal {
namespace {

// Strides of the axes in the order pp, dp, fsdp, ep, cp, tp.
struct Strides {
  int tp = 1, cp, ep, fsdp, dp, pp;
  explicit Strides(const Layout& l)
      : cp(l.tp), ep(l.tp * l.cp), fsdp(ep * l.ep), dp(fsdp * l.fsdp), pp(dp * l.dp) {}
};

struct AxisSpan {
  int size, stride;
};

// Ranks that differ from `first` along these axes.
std::vector<int> members(int first, std::initializer_list<AxisSpan> axes) {
  std::vector<int> ranks{first};
  for (const AxisSpan& axis : axes) {
    const std::vector<int> before = ranks;
    ranks.clear();
    for (int i = 0; i < axis.size; ++i)
      for (const int rank : before) ranks.push_back(rank + i * axis.stride);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// The group of `first` along these axes, if all nodes are alike: the members on the node of `first`
// stand for all nodes.
GroupShape uniform_shape(const Cluster& cluster, int first, std::initializer_list<AxisSpan> axes) {
  const NodeType& type = cluster.nodes[0];
  const int local = first % type.devices;
  std::vector<int> here{local};
  int ranks = 1;
  for (const AxisSpan& axis : axes) {
    ranks *= axis.size;
    const std::vector<int> before = here;
    for (int i = 1; i < axis.size && i * axis.stride < type.devices; ++i)
      for (const int rank : before)
        if (rank + i * axis.stride < type.devices) here.push_back(rank + i * axis.stride);
  }
  GroupShape g;
  g.ranks = ranks;
  g.per_node = static_cast<int>(here.size());
  g.nodes = (ranks + g.per_node - 1) / g.per_node;
  g.intra = ring_bandwidth(type, here);
  g.switched = g.nodes == 1 ? switch_bandwidth(cluster, type) : 0;
  g.inter = type.inter;
  g.pci = type.wiring == Wiring::kHost;
  g.shared_memory = type.wiring == Wiring::kShared;
  g.latency = type.intra.latency;
  g.library = cluster.library;
  return g;
}

// Time of a unit of work on a device, to find the slowest.
double slowness(const Job& job, int rank) {
  const Accelerator& a = accelerator_of(job.cluster, rank);
  const double rate = peak(a, job.layout.precision);
  if (rate > 0) return 1 / rate;
  return a.rates.empty() ? 1 : a.rates[0].seconds / (a.rates[0].m * a.rates[0].n * a.rates[0].k);
}

GroupShape shape(const Job& job, int first, std::initializer_list<AxisSpan> axes) {
  GroupShape g = job.cluster.nodes.size() == 1 ? uniform_shape(job.cluster, first, axes)
                                               : group_shape(job.cluster, members(first, axes), 1);
  // Every device of a node belongs to some group of the axis. They share the network cards.
  const DevicePlace place = device_place(job.cluster, first);
  const int here = job.cluster.nodes[static_cast<std::size_t>(place.type)].devices;
  g.sharing = std::max(1, std::min(here, world_of(job.layout)) / std::max(1, g.per_node));
  return g;
}

}  // namespace

int shard_ranks(const Job& job) {
  const Layout& l = job.layout;
  if (l.zero_stage == 0) return 1;
  const int along = l.fsdp > 1 ? l.fsdp : l.dp;
  return along * (job.software.shards_over_context ? l.cp : 1);
}

Site site_of(const Job& job, int stage_rank, int replica) {
  const Layout& l = job.layout;
  const Strides s(l);
  Site site;
  site.first_rank = stage_rank * s.pp + replica * s.dp;
  const int first = site.first_rank;
  int slowest = first;
  site.memory = accelerator_of(job.cluster, first).memory;
  if (!is_uniform(job.cluster)) {
    for (const int rank :
         members(first, {{l.tp, s.tp}, {l.cp, s.cp}, {l.ep, s.ep}, {l.fsdp, s.fsdp}})) {
      if (slowness(job, rank) > slowness(job, slowest)) slowest = rank;
      site.memory = std::min(site.memory, accelerator_of(job.cluster, rank).memory);
    }
  }
  const DevicePlace place = device_place(job.cluster, slowest);
  site.accelerator = job.cluster.nodes[static_cast<std::size_t>(place.type)].accelerator;
  site.tensor = shape(job, first, {{l.tp, s.tp}});
  site.context = shape(job, first, {{l.cp, s.cp}});
  const bool over_tensor = job.software.experts_over_tensor && job.model.experts > 0;
  site.expert = shape(job, first, {{over_tensor ? l.tp : 1, s.tp}, {l.ep, s.ep}});
  const int origin = stage_rank * s.pp;
  const AxisSpan dp = {l.dp, s.dp}, fsdp = {l.fsdp, s.fsdp}, ep = {l.ep, s.ep}, cp = {l.cp, s.cp};
  const bool over_cp = job.software.shards_over_context;
  const AxisSpan one = {1, 1};
  if (l.zero_stage == 0) {
    site.shards = shape(job, origin, {});
    site.replicas = shape(job, origin, {cp, ep, fsdp, dp});
  } else if (l.fsdp > 1) {
    site.shards = shape(job, origin, {over_cp ? cp : one, fsdp});
    site.replicas = shape(job, origin, {over_cp ? one : cp, ep, dp});
  } else {
    site.shards = shape(job, origin, {over_cp ? cp : one, dp});
    site.replicas = shape(job, origin, {over_cp ? one : cp, ep});
  }
  site.expert_data = shape(job, origin, {cp, fsdp, dp});
  return site;
}

}  // namespace weft::plan::internal
