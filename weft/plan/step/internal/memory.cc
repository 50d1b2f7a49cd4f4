#include "weft/plan/step/internal/memory.h"

#include <algorithm>
#include <set>

namespace weft::plan::internal {
namespace {

using schedule::pipeline::Action;
using schedule::pipeline::Work;

// Gradients are made where activations were, but not all fit there. So much of the smaller of both
// lies elsewhere; measured with GPTs and ResNets on 2 and 4 ranks: 0.2 to 0.8.
constexpr double kBetween = 0.5;

bool half(const Job& job) { return element_bytes(job.layout.precision) < 4; }

// Activations of one stage.
struct StageMemory {
  double kept = 0;   // From forward to backward, for one micro-batch.
  double ahead = 0;  // Further bytes while forward runs.
  double back = 0;   // Further bytes while backward runs: what recomputation brings back.
};

StageMemory stage_memory(const Replica& replica, const StageCost& stage, Recompute recompute) {
  StageMemory m;
  for (int b = stage.first; b < stage.last; ++b) {
    const ModelBlock& block = *replica.blocks()[static_cast<std::size_t>(b)];
    const Recompute kept = block.recomputes ? recompute : Recompute::kNone;
    const double ratio = replica.kept_ratio(static_cast<std::size_t>(b));
    const double all = block.kept_all * ratio;
    const double bytes = kept == Recompute::kFull        ? block.kept_input
                         : kept == Recompute::kSelective ? block.kept_selective * ratio
                                                         : all;
    m.kept += bytes;
    m.ahead = std::max(m.ahead, block.transient);
    const bool again = kept != Recompute::kNone;
    m.back = std::max(m.back, block.transient + (again ? all - bytes : 0));
  }
  return m;
}

double parameters_of(const Replica& replica, int rank) {
  return replica.ranks()[static_cast<std::size_t>(rank)].all_parameters();
}

double largest_block(const Replica& replica, int rank) {
  double largest = 0;
  for (const StageCost& stage : replica.stages()) {
    if (stage.rank != rank) continue;
    for (int b = stage.first; b < stage.last; ++b) {
      const ModelBlock& block = *replica.blocks()[static_cast<std::size_t>(b)];
      largest = std::max(largest, block.parameters + block.expert_parameters);
    }
  }
  return largest;
}

// Buffers that live during the whole step: gathered blocks of ZeRO-3, buckets of gradients.
double buffers_of(const Job& job, const Replica& replica, int rank) {
  const double all = parameters_of(replica, rank);
  const double weight = half(job) ? 2 : 4, gradient = half(job) ? job.software.gradient_bytes : 4;
  const Site& site = replica.sites()[static_cast<std::size_t>(rank)];
  if (job.layout.zero_stage > 0 && reads_in_place(site.shards)) return 0;
  if (job.layout.zero_stage == 3 && !replica.gathers_each_time()) return all * (weight + gradient);
  if (job.layout.zero_stage == 3)
    return largest_block(replica, rank) *
           (weight * (job.software.gathers_ahead ? 2 : 1) + gradient);
  if (job.layout.dp * job.layout.fsdp * job.layout.ep * job.layout.cp == 1) return 0;
  if (updates_once_a_host(job, site.replicas)) return 0;
  if (!job.layout.rule.is_sync() && job.layout.zero_stage == 0) return 0;
  return std::min(2 * job.software.bucket_bytes, all * gradient);
}

// Where ranks of a host use each other's memory, each has its share of what exists once, and maps
// the rest.
Memory states_on(const Job& job, const Replica& replica, int rank, double parameters) {
  Memory m = states_of(job, parameters);
  const Site& site = replica.sites()[static_cast<std::size_t>(rank)];
  const bool once = updates_once_a_host(job, site.replicas);
  const GroupShape& group = once ? site.replicas : site.shards;
  if (!once && (job.layout.zero_stage == 0 || !reads_in_place(group))) return m;
  const double n = group.ranks, others = (n - 1) / n;
  const double whole = job.layout.zero_stage >= 3 ? m.weights * n : m.weights;
  m.weights = whole / n;
  m.mapped = whole * others;
  if (once) {
    m.mapped += m.gradients * (n - 1) + m.optimizer * others;
    m.optimizer /= n;
  } else {
    // They stay where autograd made them until a rank that is behind has read them.
    if (job.layout.zero_stage >= 2) m.gradients *= n;
    m.mapped += m.gradients * others;
  }
  return m;
}

}  // namespace

Memory states_of(const Job& job, double parameters) {
  const bool masters = half(job) && job.software.master_weights && job.optimizer.masters;
  const bool narrow = half(job) && job.software.master_weights;
  const double weight = narrow ? 2 : 4, gradient = half(job) ? job.software.gradient_bytes : 4,
               state = job.optimizer.state_bytes + (masters ? 4 : 0);
  const double shards = shard_ranks(job);
  const int zero = job.layout.zero_stage;
  Memory m;
  m.weights = parameters * weight / (zero >= 3 ? shards : 1);
  const double trained = trained_share(job.model);
  m.gradients = trained * parameters * gradient / (zero >= 2 ? shards : 1);
  m.optimizer = trained * parameters * state / (zero >= 1 ? shards : 1);
  m.optimizer += parameters * 4 * arrays_of(job.layout.rule) / (zero >= 1 ? shards : 1);
  if (zero >= 1) m.optimizer += parameters * job.software.partition_bytes / shards;
  return m;
}

double least_memory(const Job& job, const Replica& replica) {
  std::vector<double> live(replica.ranks().size());  // by rank: of its largest stage
  for (const StageCost& stage : replica.stages()) {
    const StageMemory m = stage_memory(replica, stage, job.layout.recompute);
    double& most = live[static_cast<std::size_t>(stage.rank)];
    most = std::max(most, m.kept + std::max(m.ahead, m.back));
  }
  double most = 0;
  for (int rank = 0; rank < job.layout.pp; ++rank) {
    const Memory states = states_on(job, replica, rank, parameters_of(replica, rank));
    const double activations =
        live[static_cast<std::size_t>(rank)] * (1 + job.software.fragmentation);
    const double working = job.software.frees_gradients ? std::max(states.gradients, activations)
                                                        : states.gradients + activations;
    most = std::max(most, states.weights + states.optimizer + working +
                              buffers_of(job, replica, rank) + job.software.context_bytes);
  }
  return most;
}

std::vector<Memory> memory_of(const Job& job, const Replica& replica,
                              const schedule::pipeline::Schedule& schedule,
                              const schedule::pipeline::Timing& timing) {
  std::vector<StageMemory> stages;
  for (const StageCost& stage : replica.stages())
    stages.push_back(stage_memory(replica, stage, job.layout.recompute));
  const bool splits = schedule::pipeline::splits_backward(schedule.request.algorithm);
  std::vector<Memory> all;
  for (int rank = 0; rank < job.layout.pp; ++rank) {
    const double parameters = parameters_of(replica, rank);
    Memory peak = states_on(job, replica, rank, parameters);
    const double buffers = buffers_of(job, replica, rank), whole = peak.gradients;
    double held = 0, gradients = job.software.frees_gradients ? 0 : whole, most = -1;
    std::set<int> made;  // stages with gradients
    const auto look = [&](double further, double seconds) {
      if (held + further + gradients <= most) return;
      most = held + further + gradients;
      peak.activations = held;
      peak.gradients = gradients;
      peak.transient = further + buffers;
      peak.seconds = seconds;
    };
    const auto& actions = schedule.actions[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const auto s = static_cast<std::size_t>(action.stage);
      const StageMemory& stage = stages[s];
      const bool forward = action.work == Work::kForward;
      const double end = timing.spans[static_cast<std::size_t>(rank)][i].end;
      if (forward) held += stage.kept;
      look(forward ? stage.ahead : stage.back, end);
      if (action.work != (splits ? Work::kBackwardWeight : Work::kBackward)) continue;
      held -= stage.kept;
      if (!job.software.frees_gradients || !made.insert(action.stage).second) continue;
      const StageCost& cost = replica.stages()[s];
      const double stages_own = cost.parameters + cost.expert_parameters;
      const double more = parameters > 0 ? whole * stages_own / parameters : 0;
      gradients += more;
      look(stage.back + kBetween * std::min(more, stage.kept), end);
    }
    peak.fragmentation = job.software.fragmentation * (peak.activations + peak.transient - buffers);
    peak.context = job.software.context_bytes;
    all.push_back(peak);
  }
  return all;
}

}  // namespace weft::plan::internal
