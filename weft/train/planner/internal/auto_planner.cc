#include "weft/train/planner/internal/auto_planner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/observe/memory.h"
#include "weft/parallel/compose/plan.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/probe.h"
#include "weft/train/internal/resizing.h"
#include "weft/train/planner/internal/block_times.h"
#include "weft/train/planner/internal/codec_costs.h"
#include "weft/train/planner/internal/machine_rates.h"
#include "weft/train/planner/internal/plan_candidates.h"
#include "weft/train/planner/internal/resized_cluster.h"
#include "weft/train/planner/internal/step_corrections.h"
#include "weft/train/planner/planning.h"
#include "weft/train/recipe.h"

namespace weft::train::internal {
namespace {

constexpr double kSearchSeconds = 5, kBlockSeconds = 2, kProbeSeconds = 5, kMemorySeconds = 2.5;
constexpr int kKept = 10;
constexpr std::size_t kKeptAgain = 3;
constexpr double kMessage = 5e-6;  // kMessage: as plan/cost/collectives.cc.
// Blocks are measured with a replica's samples, and with so many times fewer, again and again.
constexpr std::int64_t kFewer = 4;

std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

double parameters_in(const plan::Job& job) {
  double sum = 0;
  for (const plan::MeasuredBlock& block : job.model.profile->blocks) sum += block.parameters;
  return sum;
}

// Bytes of a process now, without what it has freed: the mean over the ranks.
double held(const Group& world) {
  release_memory(world);
  at::Tensor sum = at::tensor({static_cast<double>(observe::memory_share())}, at::kDouble);
  world.all_reduce(sum);
  return sum.item<double>() / world.size();
}

// Bytes of a process: the mean over the ranks.
double memory_of(const plan::Step& step) {
  double sum = 0;
  for (const plan::Memory& rank : step.memory) sum += rank.total();
  return sum / static_cast<double>(step.memory.size());
}

double least_memory(const plan::Cluster& cluster) {
  double least = cluster.accelerators[0].memory;
  for (const plan::Accelerator& one : cluster.accelerators) least = std::min(least, one.memory);
  return least;
}

bool has_several_hosts(const plan::Cluster& cluster) {
  return cluster.nodes.size() > 1 || cluster.nodes[0].count > 1;
}

}  // namespace

AutoPlanner::AutoPlanner(Config config, bool is_recipe)
    : config_(std::move(config)), is_recipe_(is_recipe) {}

plan::Found AutoPlanner::found(const plan::Job& job, int keep) const {
  plan::SearchOptions options;
  options.space = space_for(config_, is_recipe_, job);
  if (const auto names = codecs(); !names.empty()) options.space.codecs = names;
  options.seconds = kSearchSeconds;
  options.clock = steady_seconds;
  options.keep = keep;
  return plan::search(job, options);
}

// The codecs that a plan chooses from. There are none on one host: its ranks read each other's
// gradients in place, so no codec helps.
std::vector<std::string> AutoPlanner::codecs() const {
  if (job_.measured.codecs.empty()) return {};
  return codecs_of_plans();
}

// The batch counts as rounded up, since ranks may differ by a sample.
plan::Job AutoPlanner::job_for(int ranks) const {
  plan::Job job = job_;
  if (ranks != plan::devices(job.cluster)) {
    job.measured.slowness = slowness_with(job.cluster, job.measured.slowness, ranks);
    job.cluster = with_ranks(job.cluster, ranks);
  }
  job.layout.global_batch = rounded_up(options_.batch, ranks);
  return job;
}

std::optional<plan::Layout> AutoPlanner::replicas_alone(int micro_batches,
                                                        std::int64_t batch) const {
  plan::Layout layout = job_.layout;
  layout.dp = plan::devices(job_.cluster);
  layout.global_batch = rounded_up(batch, layout.dp);
  const std::int64_t share = layout.global_batch / layout.dp;
  // A batch norm over features needs two samples.
  const std::int64_t least = micro_batches == 1 ? 1 : 2 * micro_batches;
  if (batch < layout.dp || share < least) return std::nullopt;
  layout.micro_batch = static_cast<int>((share + micro_batches - 1) / micro_batches);
  return layout;
}

void AutoPlanner::measure(const Task& task, const Options& options, const Group& world) {
  options_ = options;
  shape_ = parallel::shape_of(task.model);
  samples_ = task.train.size;
  const Turn turn = turn_of(world);
  const plan::Cluster cluster = measure_cluster(world, /*quick=*/true);
  const bool text = is_recipe_ && is_text(config_);
  BlockTimesOptions timing{.precision = options.plan.precision,
                           .name = is_recipe_ ? config_.get_string("model.name") : options.program,
                           .tokens = text ? config_.get_int("model.sequence") : 0,
                           .turn = turn.turn,
                           .turns = turn.turns,
                           .most_seconds = kBlockSeconds,
                           .most_bytes = least_memory(cluster) / 4};
  // A batch norm over features needs two samples.
  const std::int64_t share = std::max<std::int64_t>(1, options.batch / world.size()),
                     least = text || share == 1 ? 1 : 2;
  timing.batches = {share};
  for (std::int64_t size = share / kFewer; size > least; size /= kFewer)
    timing.batches.push_back(size);
  if (share > least) timing.batches.push_back(least);
  std::reverse(timing.batches.begin(), timing.batches.end());
  const auto blocks = std::make_shared<const plan::Profile>(time_blocks(task, world, timing));
  PlannedOptions planned{.blocks = blocks, .is_program = !is_recipe_};
  job_ = planned_job(config_, cluster, planned);
  job_.model.profile = blocks;
  const plan::NodeType& first = cluster.nodes[0];
  const plan::Link& link = first.devices > 1 ? first.intra : first.inter;
  job_.measured.message = std::max(0.0, measure_message(world) - link.latency - kMessage);
  job_.software.context_bytes = held(world);
  job_ = job_for(world.size());
  if (options.plan.codec == "auto" && has_several_hosts(cluster))
    job_.measured.codecs = measure_codecs(task.model, world);
  probe_replicas(task, options, world);
}

// Fewer samples than a step has, if all would take long or do not fit, but four for each rank.
std::int64_t AutoPlanner::probed_batch() const {
  const std::int64_t parts = 2 * plan::devices(job_.cluster);
  for (std::int64_t batch = options_.batch;;) {
    const auto layout = replicas_alone(1, batch);
    const std::int64_t half = batch / 2 / parts * parts;
    if (!layout || half < 2 * parts) return batch;
    plan::Job job = job_;
    job.layout = *layout;
    const plan::Step step = plan::simulate_step(job);
    if (step.fits && step.seconds <= kProbeSeconds) return batch;
    batch = half;
  }
}

// Corrects the model by real steps of replicas, with few and with more micro-batches.
void AutoPlanner::probe_replicas(const Task& task, const Options& options, const Group& world) {
  std::vector<ComparedStep> compared;
  double model_memory = 0;
  const std::int64_t batch = probed_batch();
  for (const int micro_batches : {1, 2}) {
    const auto layout = replicas_alone(micro_batches, batch);
    if (!layout) break;
    plan::Job job = job_;
    job.layout = *layout;
    const plan::Step step = plan::simulate_step(job);
    if (!step.fits) break;
    Options tried = options;
    tried.batch = batch;
    set_plan(tried, recipe_fragment(*layout, job));
    // The memory of a process grows over some steps, while gaps between blocks fill.
    const ProbeOptions how{.seconds = micro_batches == 1 ? kMemorySeconds : ProbeOptions{}.seconds};
    const ProbedStep real = probe(task, tried, world, how);
    compared.push_back({micro_batches, step.parts, real});
    if (batch == options.batch) probed_.emplace_back(*layout, real);
    if (micro_batches == 1) model_memory = memory_of(step) - step.peak().context;
  }
  if (compared.empty()) return;
  std::optional<ComparedStep> more;
  if (compared.size() > 1) more = compared[1];
  double crowd = 1;  // Ranks for each processor, where they are most.
  for (const plan::NodeType& node : job_.cluster.nodes)
    crowd = std::max(crowd, static_cast<double>(node.devices) / std::max(1, node.processors));
  plan::Corrections measured = corrections(compared[0], more, crowd);
  measured.message = job_.measured.message;
  measured.codecs = job_.measured.codecs;
  job_.measured = std::move(measured);
  job_.software.context_bytes =
      std::max(job_.software.context_bytes / 2, compared[0].measured.memory - model_memory);
  if (world.rank() != 0) return;
  const plan::Corrections& m = job_.measured;
  log_debug("plan: measured", {{"compute_factor", m.compute},
                               {"micro_batch_us", m.micro_batch * 1e6},
                               {"message_us", m.message * 1e6},
                               {"update_factor", m.sync},
                               {"step_us", m.step.value_or(0) * 1e6},
                               {"unequal_ranks", !m.slowness.empty()},
                               {"process_gib", job_.software.context_bytes / plan::kGiB}});
}

// Bytes of the copy of the state that a checkpoint in the background is written from.
double AutoPlanner::copies(const plan::Job& job) const {
  if (!saves_checkpoints(options_) || !options_.checkpoint_async) return 0;
  return parameters_in(job) * (4 + job.optimizer.state_bytes) / plan::devices(job.cluster);
}

PlannedLayout AutoPlanner::describe(const plan::Job& job,
                                    const plan::LayoutCandidate& candidate) const {
  const plan::Step& step = candidate.step;
  PlannedLayout planned;
  planned.layout = plan::describe(candidate.layout);
  if (!candidate.layout.shares.empty()) planned.layout += ", batches by speed";
  planned.keys = recipe_fragment(candidate.layout, job);
  planned.codec = candidate.layout.codec;
  planned.ranks = plan::devices(job.cluster);
  planned.seconds = planned.model_seconds = step.seconds;
  planned.memory = memory_of(step) + copies(job);
  planned.traffic = step.traffic;
  const plan::Parts& parts = step.parts;
  planned.parts = {.step = step.seconds,
                   .compute = parts.compute + parts.recompute + parts.bubble,
                   .communication = parts.exposed() + parts.gradients,
                   .update = parts.optimizer};
  return planned;
}

bool AutoPlanner::can_run(const PlannedLayout& planned) const {
  try {
    Options tried = options_;
    set_plan(tried, planned.keys);
    const plan::MeshLayout mesh(planned.ranks, tried.mesh.axes());
    tried.plan.batch = tried.batch;
    parallel::check_plan(tried.plan, shape_, mesh);
    plan_batches(tried, replicas(mesh), samples_);
    if (!is_recipe_) return true;
    Config config = config_;
    set_plan_keys(config, planned.keys, "parallel.plan");
    config.set("parallel.plan=\"manual\"");
    check_recipe(config);
    return true;
  } catch (const Error& error) {
    log_debug("plan: " + planned.layout + " cannot run: " + error.message());
    return false;
  }
}

// The best layouts by the model, the fastest first.
std::vector<PlannedLayout> AutoPlanner::candidates(const plan::Job& job) const {
  const int kept = kKept * std::max(1, static_cast<int>(codecs().size()));
  const plan::Found all = found(job, kept);
  if (all.best.empty()) throw Error(Errc::kBadConfig, too_large(all, job));
  std::vector<PlannedLayout> good;
  for (const plan::LayoutCandidate& one : all.best) {
    good.push_back(describe(job, one));
    if (const auto same = by_speed(job, one.layout)) good.push_back(*same);
  }
  std::erase_if(good, [&](const PlannedLayout& one) { return !can_run(one); });
  if (good.empty())
    throw Error(Errc::kBadConfig, "parallel.plan = \"auto\": weft runs none of the " +
                                      std::to_string(all.best.size()) +
                                      " best layouts; set the axes yourself");
  prune(good);
  // The model may be wrong about the number of micro-batches. These layouts have run.
  for (const auto& [layout, real] : probed_) {
    const auto same = by_speed(job, layout);
    if (same && can_run(*same)) good.insert(good.begin(), *same);
  }
  return good;
}

// The layout with batches by speed; nullopt if the ranks are equal or it has no replicas.
std::optional<PlannedLayout> AutoPlanner::by_speed(plan::Job job,
                                                   const plan::Layout& layout) const {
  if (job.measured.slowness.empty() || plan::replicas_of(layout) < 2) return std::nullopt;
  job.layout = layout;
  job.layout.shares = shares_of(layout, job.measured.slowness);
  return describe(job, {job.layout, plan::simulate_step(job), 0, ""});
}

PlannedLayout AutoPlanner::predict(const Options& options, int ranks) const {
  const plan::MeshLayout mesh(ranks, options.mesh.axes());
  plan::Job job = job_;
  plan::Layout& l = job.layout;
  l.dp = mesh.size("dp"), l.fsdp = mesh.size("fsdp"), l.tp = mesh.size("tp");
  l.pp = mesh.size("pp"), l.cp = mesh.size("cp"), l.ep = mesh.size("ep");
  l.zero_stage = l.fsdp > 1 ? options.plan.zero_stage : 0;
  l.schedule = options.plan.schedule;
  l.virtual_stages = l.pp > 1 ? parallel::virtual_stages(options.plan) : 1;
  l.cuts = options.plan.cuts;
  l.codec = options.plan.codec;
  const int micro_batches = options.plan.micro_batches > 0 ? options.plan.micro_batches
                            : l.pp > 1                     ? 4 * l.pp
                                                           : 1;
  const std::int64_t parts = static_cast<std::int64_t>(micro_batches) * plan::replicas_of(l);
  l.global_batch = rounded_up(options.batch, parts);
  l.micro_batch = static_cast<int>(l.global_batch / parts);
  const plan::Step step = plan::simulate_step(job);
  if (!step.fits) throw Error(Errc::kBadConfig, does_not_fit(l, step, found(job_, 1)));
  return describe(job, {l, step, 0, ""});
}

// One for each mesh, so that they differ in more than micro-batches.
std::vector<PlannedLayout> AutoPlanner::best_for(const plan::Job& job) const {
  std::vector<PlannedLayout> good;
  std::vector<std::vector<plan::Axis>> meshes;
  for (const plan::LayoutCandidate& one : found(job, 3 * kKept).best) {
    if (good.size() == kKeptAgain) break;
    const std::vector<plan::Axis> mesh = plan::axes_of(one.layout);
    if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
    PlannedLayout planned = describe(job, one);
    if (!can_run(planned)) continue;
    meshes.push_back(mesh);
    good.push_back(std::move(planned));
  }
  return good;
}

PlannedLayout AutoPlanner::again(int ranks) const {
  const auto best = best_for(job_for(ranks));
  return best.empty() ? all_replicas(ranks) : best.front();
}

std::vector<PlannedLayout> AutoPlanner::again(const PlannedLayout& planned,
                                              const Departure& departure) const {
  return best_for(departed(job_, planned.parts, departure, planned.traffic));
}

}  // namespace weft::train::internal
