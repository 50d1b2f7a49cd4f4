#include "weft/train/planner/internal/machine_rates.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/comm/topology/find.h"
#include "weft/plan/collectives/calibration.h"
#include "weft/train/internal/measured.h"
#include "weft/train/planner/internal/resized_cluster.h"

namespace weft::train::internal {
namespace {

using std::chrono::steady_clock;

constexpr double kMinSeconds = 0.02;  // Of the runs of one measurement.
constexpr int kMinRuns = 5, kMaxRuns = 200;
constexpr int kMessages = 50, kAllReduces = 11, kQuickRuns = 3;
constexpr double kQuickFlops = 7e8;
constexpr std::int64_t kMessageElements = 1024;
constexpr std::int64_t kCopyBytes = 64 << 20;
constexpr std::int64_t kSmallElements = 16, kLargeElements = 4 << 20;

struct Shape {
  std::int64_t m, n, k;
};
// Products of small and middle-sized transformers and convolutions, forward and backward.
constexpr Shape kShapes[] = {
    {32, 10, 512},      {64, 64, 64},     {256, 32, 256},   {512, 128, 128},   {512, 384, 128},
    {512, 512, 128},    {512, 128, 512},  {512, 384, 384},  {512, 1152, 384},  {512, 1536, 384},
    {512, 384, 1536},   {2048, 128, 128}, {2048, 512, 128}, {2048, 384, 384},  {2048, 1536, 384},
    {2048, 384, 1536},  {128, 384, 2048}, {384, 384, 2048}, {1536, 384, 2048}, {8192, 64, 576},
    {8192, 128, 1152},  {576, 64, 8192},  {1024, 768, 768}, {1024, 3072, 768}, {1024, 1024, 1024},
    {2048, 2048, 2048}, {512, 2048, 384}, {64, 1024, 1024},
};

// Median seconds of a call. `runs` above 0: so many calls. Else as many as take a while.
double time_of(const std::function<void()>& call, int runs = 0) {
  call();  // warms up
  std::vector<double> all;
  double sum = 0;
  const auto is_done = [&] {
    const auto done = static_cast<int>(all.size());
    if (runs > 0) return done >= runs;
    return done >= kMaxRuns || (sum >= kMinSeconds && done >= kMinRuns);
  };
  while (!is_done()) {
    const auto start = steady_clock::now();
    call();
    all.push_back(seconds_since(start));
    sum += all.back();
  }
  return median(std::move(all));
}

int cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// The host of this rank.
struct Host {
  std::vector<int> ranks;
  int place = 0;       // Of this rank among them.
  int processors = 1;  // Ranks that compute at once: as many as the cores allow.
  int size() const { return static_cast<int>(ranks.size()); }
};

// Where no host has several ranks, the topology has no level of hosts.
int host_number(const schedule::Topology& topology, int rank) {
  const auto level = topology.find(schedule::Scope::kHost);
  return level ? topology.group_of(*level, rank) : rank;
}

Host host_of(const schedule::Topology& topology, const Group& world) {
  const int mine = host_number(topology, world.rank());
  Host host;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) host.place = host.size();
    if (host_number(topology, rank) == mine) host.ranks.push_back(rank);
  }
  host.processors = std::clamp(cores() / std::max(1, at::get_num_threads()), 1, host.size());
  return host;
}

// Measures on the ranks that compute at once, while the others wait; the mean is shared.
class Meter {
 public:
  // `runs` as time_of().
  Meter(const Group& world, bool computes, int runs)
      : world_(world), computes_(computes), runs_(runs) {}

  bool is_quick() const { return runs_ > 0; }

  double operator()(const std::function<void()>& call) const {
    world_.barrier();
    at::Tensor sum =
        at::tensor({computes_ ? time_of(call, runs_) : 0.0, computes_ ? 1.0 : 0.0}, at::kDouble);
    world_.all_reduce(sum);
    const double* const sums = sum.const_data_ptr<double>();
    return sums[0] / std::max(1.0, sums[1]);
  }

 private:
  const Group& world_;
  const bool computes_;
  const int runs_;
};

double product(const Meter& meter, const Shape& shape, at::ScalarType type) {
  const at::Tensor a = at::randn({shape.m, shape.k}).to(type),
                   b = at::randn({shape.k, shape.n}).to(type);
  at::Tensor c = at::empty({shape.m, shape.n}, a.options());
  return meter([&] { at::matmul_out(c, a, b); });
}

plan::Accelerator measure_processor(const Meter& meter, int sharing) {
  plan::Accelerator a;
  a.name = plan::machine_identity() + ", one of " + counted(sharing, "rank");
  a.generation = plan::Generation::kCpu;
  double best = 0;
  for (const Shape& shape : kShapes) {
    const double m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
                 k = static_cast<double>(shape.k);
    if (meter.is_quick() && 2 * m * n * k > kQuickFlops) continue;
    const double seconds = product(meter, shape, at::kFloat);
    a.rates.push_back({m, n, k, seconds});
    best = std::max(best, 2 * m * n * k / seconds);
  }
  const double size = meter.is_quick() ? 256 : 1024;
  const auto side = static_cast<std::int64_t>(size);
  const double narrow = 2 * std::pow(size, 3) / product(meter, {side, side, side}, at::kBFloat16);
  a.peaks[static_cast<std::size_t>(plan::Precision::kFp32)] = best;
  a.peaks[static_cast<std::size_t>(plan::Precision::kBf16)] = narrow;
  const at::Tensor from = at::ones({kCopyBytes / 4});
  at::Tensor to = at::ones_like(from);
  a.bandwidth = 2.0 * static_cast<double>(kCopyBytes) / meter([&] { to.copy_(from); });
  a.memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
             static_cast<double>(::sysconf(_SC_PAGESIZE)) / sharing;
  a.units = std::max(1, at::get_num_threads());
  return a;
}

// Seconds of an all-reduce of float32 elements among the ranks of one host.
double all_reduce_seconds(const Group& host, std::int64_t elements) {
  at::Tensor x = at::ones({elements});
  host.barrier();
  const double usual = time_of([&] { host.all_reduce(x); }, kAllReduces);
  at::Tensor worst = at::tensor({usual}, at::kDouble);
  host.all_reduce(worst, ReduceOp::kMax);
  return worst.item<double>();
}

// The link at which an all-reduce in shared memory takes as long as measured (2 n meetings, and two
// passes over the rank's part).
plan::Link shared_memory(const Group& host) {
  if (host.size() == 1) return {.bandwidth = 10e9, .latency = 1e-6};
  const double n = host.size();
  const double small = all_reduce_seconds(host, kSmallElements),
               large = all_reduce_seconds(host, kLargeElements);
  const double bytes = 4.0 * static_cast<double>(kLargeElements);
  return {.bandwidth = 2 * (n - 1) / n * bytes / std::max(1e-9, large - small),
          .latency = small / (2 * n)};
}

// The slower of two links that processes on hosts reach; an Ethernet of 10 Gbit/s if there is one
// host only.
plan::Link between_hosts(const schedule::Topology& topology, int hosts) {
  if (hosts == 1) return {.bandwidth = 1.25e9, .latency = 25e-6, .share = 0.8};
  const schedule::Link& link = topology.level(0).link;
  return {.bandwidth = link.bandwidth, .latency = link.latency, .share = 1};
}

struct HostSeen {
  int ranks = 0, processors = 1;
  double memory = 0;  // of a rank
  plan::Link intra;
};

// Adjacent hosts with equal numbers of ranks become nodes of one type. The type has the fewest
// processors, the least memory and the slowest link of these hosts.
void add_hosts(const std::vector<HostSeen>& hosts, const plan::Accelerator& processor,
               const plan::Link& inter, plan::Cluster& cluster) {
  for (const HostSeen& host : hosts) {
    if (cluster.nodes.empty() || cluster.nodes.back().devices != host.ranks) {
      plan::NodeType node{.devices = host.ranks, .processors = host.processors};
      node.wiring = plan::Wiring::kShared;
      node.intra = host.intra;
      node.inter = inter;
      plan::Accelerator own = processor;
      own.memory = host.memory;
      add_node_type(cluster, node, std::move(own));
    }
    plan::NodeType& node = cluster.nodes.back();
    ++node.count;
    node.processors = std::min(node.processors, host.processors);
    node.intra.bandwidth = std::min(node.intra.bandwidth, host.intra.bandwidth);
    node.intra.latency = std::max(node.intra.latency, host.intra.latency);
    double& memory = cluster.accelerators.back().memory;
    memory = std::min(memory, host.memory);
  }
}

}  // namespace

Turn turn_of(const Group& world) {
  const Host host = host_of(comm::topology::find_topology(world, {.probe = false}), world);
  at::Tensor most = at::tensor({(host.size() + host.processors - 1) / host.processors}, at::kLong);
  world.all_reduce(most, ReduceOp::kMax);
  return {host.place / host.processors, static_cast<int>(most.item<std::int64_t>())};
}

double measure_message(const Group& world) {
  if (world.size() == 1) return 0;
  at::Tensor x = at::zeros({kMessageElements});
  const int rank = world.rank();
  world.barrier();
  double seconds = 0;
  if (rank < 2) {
    const double there_and_back = time_of(
        [&] {
          if (rank == 0) world.send(x, 1);
          world.recv(x, 1 - rank);
          if (rank == 1) world.send(x, 0);
        },
        kMessages);
    seconds = rank == 0 ? there_and_back / 2 : 0;
  }
  at::Tensor all = at::tensor({seconds}, at::kDouble);
  world.all_reduce(all);
  return all.item<double>();
}

plan::Cluster measure_cluster(const Group& world, bool quick) {
  const schedule::Topology topology = comm::topology::find_topology(world);
  const Host host = host_of(topology, world);
  const int here = host.size();
  const plan::Accelerator processor =
      measure_processor(Meter(world, host.place < host.processors, quick ? kQuickRuns : 0), here);
  const plan::Link intra = shared_memory(world.subgroup(host.ranks, "profile-host"));
  const double number = host_number(topology, world.rank());
  std::vector<HostSeen> hosts;  // in the order of their first ranks
  std::map<int, std::size_t> places;
  for (const auto& rank : gather_numbers(world, {number, 1.0 * host.processors, processor.memory,
                                                 intra.bandwidth, intra.latency})) {
    const auto [at, is_new] = places.try_emplace(static_cast<int>(rank[0]), hosts.size());
    if (is_new)
      hosts.push_back(
          {0, static_cast<int>(rank[1]), rank[2], {.bandwidth = rank[3], .latency = rank[4]}});
    ++hosts[at->second].ranks;
  }
  plan::Cluster cluster;
  cluster.name = "measured";
  cluster.source = "weft plan profile, " + counted(hosts[0].ranks, "rank") + " of " +
                   counted(at::get_num_threads(), "thread") + " on a machine of " +
                   counted(cores(), "processor");
  cluster.software = "weft";
  cluster.machine = plan::machine_identity();
  cluster.library = plan::Library::kWeft;
  add_hosts(hosts, processor, between_hosts(topology, static_cast<int>(hosts.size())), cluster);
  return cluster;
}

}  // namespace weft::train::internal
