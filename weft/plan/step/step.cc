#include "weft/plan/step/step.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/plan/step/internal/cache.h"
#include "weft/plan/step/internal/memory.h"
#include "weft/plan/step/internal/replica.h"

namespace weft::plan {
namespace {

using internal::Replica;
using internal::StageCost;
namespace pipeline = schedule::pipeline;

// Micro-batches for each rank that are played one by one. Beyond, the steady state repeats: every
// group of pp micro-batches takes as long as the previous one.
constexpr int kMaxGroups = 8, kMinPlayed = 64;
constexpr double kMinWeight = 1e-5;  // Backward of frozen weights, relative to forward.
constexpr double kRounding = 1e-9;   // Smaller shares of a step are rounding errors.

struct Played {
  pipeline::Schedule schedule;
  pipeline::Timing timing;
  double repeats = 0;  // Micro-batches beyond those played.
  double period = 0;   // Seconds of one of them.
};

int shortened(const Layout& l, int micro_batches) {
  const int most = std::max(kMaxGroups * l.pp, kMinPlayed);
  if (micro_batches <= most + l.pp) return micro_batches;
  // The same remainder, since groups of pp micro-batches repeat.
  return most + (micro_batches - most) % l.pp;
}

// Messages that block their sender, and their receiver where the software does not receive ahead.
std::vector<pipeline::Costs> costs_of(const Replica& replica, const Software& software) {
  const bool overlaps = software.overlaps_messages;
  std::vector<pipeline::Costs> costs;
  const auto& stages = replica.stages();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageCost& stage = stages[s];
    double ahead = overlaps ? 0 : stage.message;
    double back = overlaps || s == 0 ? 0 : stages[s - 1].message;
    if (software.receives_block) ahead = back = ahead + back;
    const double weight = stage.backward_weight;
    costs.push_back({.forward = std::max(1e-9, stage.total_forward() + ahead),
                     .backward_input = std::max(1e-9, stage.total_backward() - weight + back),
                     .backward_weight = std::max({1e-9, weight, kMinWeight * stage.forward}),
                     .message = overlaps ? stage.message : 0});
  }
  return costs;
}

Played play_replica(const Job& job, const Replica& replica) {
  const Layout& l = job.layout;
  const int m = micro_batches_of(l), some = shortened(l, m);
  const auto costs = costs_of(replica, job.software);
  Played played;
  pipeline::Request request = {.algorithm = l.schedule,
                               .ranks = l.pp,
                               .micro_batches = some,
                               .virtual_stages = l.virtual_stages,
                               .costs = costs[costs.size() / 2]};
  if (l.pp == 1 && l.virtual_stages == 1 && l.schedule != pipeline::Algorithm::kGPipe)
    request.algorithm = pipeline::Algorithm::kOneForwardOneBackward;
  played.schedule = pipeline::make(request);
  played.timing = pipeline::play_stages(played.schedule, costs);
  if (some == m) return played;
  request.micro_batches = some - l.pp;
  const auto shorter = pipeline::play_stages(pipeline::make(request), costs);
  played.repeats = m - some;
  played.period = (played.timing.makespan - shorter.makespan) / l.pp;
  return played;
}

// What a rank did, by kind, for all micro-batches.
Parts parts_of(const Job& job, const Replica& replica, int rank) {
  Parts parts;
  const double m = micro_batches_of(job.layout);
  const auto& stages = replica.stages();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageCost& stage = stages[s];
    if (stage.rank != rank) continue;
    parts.compute += m * (stage.forward + stage.backward_input + stage.backward_weight);
    parts.recompute += m * stage.recompute;
    parts.tensor += m * stage.exchanges.tensor;
    parts.context += m * stage.exchanges.context;
    parts.expert += m * stage.exchanges.expert;
    parts.sharding += m * (stage.exposed_forward + stage.exposed_backward);
    if (job.software.overlaps_messages) continue;
    parts.pipeline += m * (job.software.receives_block ? 2 : 1) *
                      (stage.message + (s > 0 ? stages[s - 1].message : 0));
  }
  return parts;
}

// The largest of `ranks` normal deviates, in standard deviations: sqrt(2 ln n).
double straggling(const Job& job) {
  const double ranks = world_of(job.layout);
  return ranks > 1 ? job.noise * std::sqrt(2 * std::log(ranks)) : 0;
}

// End of the step on the slowest rank of one replica.
struct End {
  double seconds = 0;
  Parts parts;
  double traffic = 0;
};

// Ranks of a node for each of its processors, at least 1, where they are most.
double crowding(const Job& job) {
  double most = 1;
  for (const NodeType& type : job.cluster.nodes) {
    const double ranks = std::min(type.devices, world_of(job.layout));
    if (type.processors > 0) most = std::max(most, ranks / type.processors);
  }
  return most;
}

// Mean seconds that a rank computes.
double busy_seconds(const Job& job, const Replica& replica) {
  double sum = 0;
  for (int rank = 0; rank < job.layout.pp; ++rank) {
    const Parts parts = parts_of(job, replica, rank);
    sum += parts.compute + parts.recompute;
  }
  return sum / job.layout.pp;
}

End end_of(const Job& job, const Replica& replica, const Played& played) {
  End end;
  const double crowd = crowding(job), work = crowd * busy_seconds(job, replica);
  for (int rank = 0; rank < job.layout.pp; ++rank) {
    const auto& spans = played.timing.spans[static_cast<std::size_t>(rank)];
    const Parts parts = parts_of(job, replica, rank);
    double done = spans.back().end + played.repeats * played.period;
    // Where ranks share processors, all their work takes its time, and fills the idle times.
    if (crowd > 1) done = std::max(done, work + parts.exposed());
    Replica::Sync sync = replica.sync(rank);
    sync.optimizer *= crowd;
    const double seconds = done + sync.gradients + sync.sharding + sync.optimizer;
    const double sent = sync.bytes + micro_batches_of(job.layout) * replica.sent_bytes(rank);
    end.traffic += sent / job.layout.pp;
    if (seconds <= end.seconds) continue;
    end.seconds = seconds;
    end.parts = parts;
    end.parts.sharding += sync.sharding;
    end.parts.sharding_after = sync.sharding;
    end.parts.gradients = sync.gradients;
    end.parts.optimizer = sync.optimizer;
    double idle = std::max(0.0, seconds - end.parts.sum());
    if (idle < kRounding * seconds) idle = 0;
    const double waits = std::clamp(work - parts.compute - parts.recompute, 0.0, idle);
    if (crowd > 1) end.parts.compute += waits;
    end.parts.bubble = idle - (crowd > 1 ? waits : 0);
  }
  return end;
}

void add_rates(const Job& job, Step& step) {
  const double samples = static_cast<double>(job.layout.global_batch) / step.seconds;
  const double ranks = world_of(job.layout);
  step.samples_per_s = samples;
  if (!has_images(job.model))
    step.tokens_per_s = samples * static_cast<double>(positions(complete(job.model)));
  step.flops_per_device = samples * model_flops(job.model) / ranks;
  double top = 0;
  for (int rank = 0; rank < world_of(job.layout);) {
    const DevicePlace place = device_place(job.cluster, rank);
    const NodeType& type = job.cluster.nodes[static_cast<std::size_t>(place.type)];
    const Accelerator& a = job.cluster.accelerators[static_cast<std::size_t>(type.accelerator)];
    const int here = std::min(type.devices * type.count, world_of(job.layout) - rank);
    top += here * peak(a, job.layout.precision >= Precision::kFp8 ? Precision::kBf16
                                                                  : job.layout.precision);
    step.joules += here * a.watts * step.seconds;
    step.dollars += here * a.price * step.seconds / 3600;
    rank += here;
  }
  step.mfu = top > 0 ? step.flops_per_device * ranks / top : 0;
  const double again = step.parts.compute > 0 ? 1 + step.parts.recompute / step.parts.compute : 1;
  step.hardware_flops = step.flops_per_device * again;
}

// Of the replicas, the rank that fills most of its device counts: whatever share of the memory must
// stay free, it is the first one that does not fit.
void add_memory(const Job& job, const Replica& replica, const Played& played, Step& step) {
  const auto memory = internal::memory_of(job, replica, played.schedule, played.timing);
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const double needs = memory[rank].total(), has = replica.sites()[rank].memory;
    step.fits = step.fits && needs <= has;
    step.short_by = std::max(step.short_by, needs - has);
    if (rank == step.memory.size()) {
      step.memory.push_back(memory[rank]);
      step.capacity.push_back(has);
    } else if (needs / has > step.memory[rank].total() / step.capacity[rank]) {
      step.memory[rank] = memory[rank];
      step.capacity[rank] = has;
    }
  }
}

// A model of which only the number of parameters is known.
Step states_only(const Job& job) {
  Step step;
  const double parts = static_cast<double>(job.layout.tp) * job.layout.pp;
  step.memory = {internal::states_of(job, job.model.only_parameters / parts)};
  step.memory[0].context = job.software.context_bytes;
  double capacity = accelerator_of(job.cluster, 0).memory;
  for (const NodeType& type : job.cluster.nodes) {
    const auto own = static_cast<std::size_t>(type.accelerator);
    capacity = std::min(capacity, job.cluster.accelerators[own].memory);
  }
  step.capacity = {capacity};
  step.short_by = std::max(0.0, step.memory[0].total() - capacity);
  step.fits = step.short_by <= 0;
  return step;
}

// Replicas of dp that differ in device, links or share of the batch.
std::vector<int> distinct_replicas(const Job& job) {
  const bool alike = is_uniform(job.cluster) && job.measured.slowness.empty();
  if (alike && job.layout.shares.empty()) return {0};
  std::vector<int> all;
  for (int d = 0; d < job.layout.dp && d < 4096; ++d) all.push_back(d);
  return all;
}

}  // namespace

Optimizer optimizer_of(std::string_view name) {
  const std::string key(name);
  if (key == "adam" || key == "adamw" || key == "lamb") return {key, 8};
  if (key == "adam16") return {key, 4, false};
  if (key == "sgd" || key == "none" || key == "adafactor") return {key, 0};
  if (key == "momentum" || key == "rmsprop" || key == "adagrad" || key == "lion" || key == "lars" ||
      key == "muon")
    return {key, 4};
  const auto near = nearest(key, {"adam", "adamw", "lamb", "sgd", "momentum", "rmsprop", "adagrad",
                                  "lion", "lars", "adafactor", "muon"});
  throw Error(Errc::kInvalidArgument,
              "optimizer \"" + key.substr(0, 40) + "\" is not known; " +
                  (near ? "did you mean " + *near + "?" : "use adam, momentum or sgd"));
}

StepCache::StepCache() : content_(std::make_unique<Content>()) {}
StepCache::~StepCache() = default;

const Memory& Step::peak() const {
  return *std::max_element(memory.begin(), memory.end(),
                           [](const Memory& a, const Memory& b) { return a.total() < b.total(); });
}

std::size_t Step::fullest() const {
  std::size_t most = 0;
  for (std::size_t rank = 1; rank < memory.size(); ++rank)
    if (memory[rank].total() / capacity[rank] > memory[most].total() / capacity[most]) most = rank;
  return most;
}

Step simulate_step(const Job& job) {
  check(job.layout, devices(job.cluster));
  internal::check(job.measured, devices(job.cluster));
  if (job.model.only_parameters > 0) return states_only(job);
  Step step;
  for (const int index : distinct_replicas(job)) {
    const Replica replica(job, index);
    Played played = play_replica(job, replica);
    const End end = end_of(job, replica, played);
    step.traffic = std::max(step.traffic, end.traffic);
    add_memory(job, replica, played, step);
    if (end.seconds <= step.seconds) continue;
    step.seconds = end.seconds;
    step.parts = end.parts;
    step.stages.clear();
    for (const StageCost& s : replica.stages())
      step.stages.push_back({s.first, s.last, s.rank, s.parameters + s.expert_parameters,
                             s.total_forward(), s.total_backward(), s.message});
    step.schedule = std::move(played.schedule);
    step.timing = std::move(played.timing);
    step.left_out = static_cast<int>(played.repeats);
  }
  step.parts.other = internal::step_overhead(job) + step.seconds * straggling(job);
  step.seconds += step.parts.other;
  add_rates(job, step);
  return step;
}

}  // namespace weft::plan
