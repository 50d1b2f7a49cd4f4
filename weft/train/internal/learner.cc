// The constructor is collective, and its order matters: the data of the ranks are compared first,
// then the plan is filled in, then the model is made by it. The loader comes after the model, since
// the last batch of an epoch depends on whether the model has batch norms.
//
// A step, on the rank's own part of the samples:
//
//   each pass:  batch ── seed ── forward, backward      gradients add up over the passes
//   then:       update()                                optimizer, unless a gradient is not finite
//               workers_->after_step()                  with a strategy: exchange of weights
//
// Random numbers need no place in a checkpoint. Each pass seeds libtorch's generator from the seed,
// the step, the pass and the place of the rank. Each batch follows from the position in the data.
#include "weft/train/internal/learner.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/base/text/words.h"
#include "weft/comm/init.h"
#include "weft/comm/texts.h"
#include "weft/observe/position/position.h"
#include "weft/train/internal/slow_rank.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

constexpr std::uint32_t kDraws = 0x64726177;  // a stream of random numbers: "draw"

// Fills in the batch size and the number of micro-batches of the plan.
parallel::Plan complete(const Options& options, const Mesh& mesh, std::int64_t batch) {
  parallel::Plan plan = options.plan;
  plan.micro_batches = micro_batches_of(options, mesh.layout());
  plan.batch = batch;
  if (options.batch_schedule != BatchSchedule::kNoise) return plan;
  plan.measure_noise = true;
  const std::int64_t passes = options.max_batch > 0 ? options.max_batch / batch : 8;
  plan.accumulate = static_cast<int>(std::clamp<std::int64_t>(passes, 1, 1 << 20));
  return plan;
}

// The inputs of one micro-batch, for measured stage cuts: the first samples of the data.
std::vector<at::Tensor> sample_of(const data::Source& source, const parallel::Plan& plan,
                                  const Mesh& mesh) {
  const int passes = std::max(1, parallel::micro_batches(plan, mesh.layout()));
  data::Share share;
  share.indices.resize(static_cast<std::size_t>(
      std::clamp<std::int64_t>(plan.batch / replicas(mesh.layout()) / passes, 1, source.size)));
  std::iota(share.indices.begin(), share.indices.end(), 0);
  share.global_size = static_cast<std::int64_t>(share.indices.size());
  return source.make(share).inputs;
}

parallel::Plan plan_for(const Task& task, const Options& options, const Mesh& mesh,
                        std::int64_t batch, const Saved* resumed) {
  parallel::Plan plan = complete(options, mesh, batch);
  plan.device = comm::device_of(options.device);
  if (plan.cuts.empty() && resumed != nullptr)
    plan.cuts = parallel::ParallelModel::cuts_of(mesh, resumed->reader());
  if (plan.cuts.empty() && plan.sample.empty() && mesh.size("pp") > 1)
    plan.sample = sample_of(task.train, plan, mesh);
  return plan;
}

// A pass may be as large as it was before the job was resized.
BatchDivision division_of(const Options& options, const parallel::Plan& plan,
                          const plan::MeshLayout& mesh, const Saved* resumed) {
  const int replicas = internal::replicas(mesh);
  BatchDivision division{
      .global = plan.batch,
      .replicas = replicas,
      .reference = options.reference_batch > 0 ? options.reference_batch : plan.batch,
      .first_global = plan.batch,
      .first_replicas = replicas,
      .first_ranks = mesh.world()};
  const BatchDivision before = resumed != nullptr ? resumed->batch() : BatchDivision{};
  if (options.on_resize == OnResize::kScale && before.replicas > 0) {
    division.first_global = before.start_global();
    division.first_replicas = before.start_replicas();
    division.first_ranks = before.first_ranks;
  }
  if (plan.micro_shards > 0) return division;
  const std::int64_t share = (plan.batch + replicas - 1) / replicas;
  division.pass = (share + plan.micro_batches - 1) / plan.micro_batches;
  division.pass = std::max(division.pass, before.pass);
  return division;
}

// With other numbers of samples, ranks would take some samples twice and others never. Collective.
Task same_on_all(Task task, const Group& world) {
  if (world.size() == 1) return task;
  std::string mine = counted(task.train.size, "training sample") + ", " +
                     counted(task.test.size, "test sample") + " and the metrics";
  for (const Metric& metric : task.metrics) mine += " " + metric.name;
  const auto all = comm::all_gather_texts(world, mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const int other = static_cast<int>(rank);
    throw Error(Errc::kInvalidArgument,
                "rank 0 has " + all[0] + ", rank " + std::to_string(rank) + " has " + all[rank] +
                    ": give all ranks the same data and metrics",
                {"train", world.rank(), world.rank() == other ? 0 : other});
  }
  return task;
}

// Else the first loss is NaN, which looks like a learning rate that is too high. Collective.
void require_finite(const checkpoint::Slices& weights, const Group& world) {
  std::string mine;
  for (const checkpoint::Slice& slice : weights) {
    if (!mine.empty() || !checkpoint::has_values(slice.tensor)) continue;
    if (!at::isfinite(slice.tensor).all().item<bool>()) mine = slice.name;
  }
  const auto all = world.size() > 1 ? comm::all_gather_texts(world, mine) : std::vector{mine};
  for (const std::string& name : all) {
    if (name.empty()) continue;
    throw Error(Errc::kCorrupt,
                "the weights to start from have values that are NaN or infinite: \"" + name +
                    "\"; use other weights");
  }
}

void check_device_options(const Options& options) {
  if (options.device.is_cpu()) return;
  const auto refuse = [&](bool found, const std::string& what) {
    if (found) {
      throw Error(Errc::kBadConfig, "train.device = \"" + options.device.text() +
                                        "\" does not support " + what +
                                        "; leave it out, or use train.device = \"cpu\"");
    }
  };
  refuse(options.strategy.name != "sync" || options.strategy.backup > 0, "strategies");
  refuse(options.mesh.is_auto(), "parallel.plan = \"auto\"");
  refuse(options.verify_steps > 0, "train.verify_steps");
}

}  // namespace

void check_learner(const parallel::BlockModel& model, const Options& options, const Mesh& mesh,
                   std::int64_t samples) {
  const std::int64_t batch =
      options.batch_per_rank > 0 ? options.batch_per_rank * replicas(mesh.layout()) : options.batch;
  if (strategy::exchanges_weights(options.strategy)) check_workers(options, mesh);
  if (options.plan.accumulate != 1) {
    const std::string passes = std::to_string(options.plan.accumulate);
    throw Error(Errc::kBadConfig,
                "options.plan.accumulate = " + passes +
                    " has no effect, since the trainer does a step for each batch; set "
                    "options.batch to the samples of a whole step, and options.plan.micro_batches "
                    "= " +
                    passes);
  }
  parallel::Plan plan = complete(options, mesh, batch);
  plan.batch *= plan.accumulate;
  check_device_options(options);
  // "auto" may give the other ranks a device.
  if (!options.device.is_cpu()) plan.device = at::Device(at::kCUDA, 0);
  parallel::check_plan(plan, parallel::shape_of(model), mesh.layout());
  plan_batches(options, replicas(mesh.layout()), samples);
  if (options.batch_schedule == BatchSchedule::kNoise && options.verify_steps > 0) {
    throw Error(Errc::kBadConfig,
                "train.verify_steps is not supported with train.batch_schedule = \"noise\", whose "
                "steps have several batches; leave one of them at its default");
  }
  if (options.plan.micro_shards > 0 && !mesh.world().has_ordered_sums()) {
    throw Error(Errc::kBadConfig,
                "train.reproducible needs gradients summed in a fixed order, but the transport of "
                "this group chooses its own order; make the group with "
                "InitOptions::ordered_sums, as weft train does");
  }
}

Learner::Learner(Task task, const Options& options, const Mesh& mesh, const Saved* resumed,
                 observe::Trace* trace)
    : task_(same_on_all(std::move(task), mesh.world())),
      options_(options),
      mesh_(mesh),
      worker_mesh_(worker_mesh(mesh, options.strategy)),
      batches_(plan_batches(options, replicas(mesh.layout()), task_.train.size)),
      plan_(plan_for(task_, options, mesh, batches_.global, resumed)),
      division_(division_of(options, plan_, mesh.layout(), resumed)),
      model_(parallel::parallelize(task_.model, of_worker(plan_, options, mesh), worker_mesh_)),
      data_(options, mesh, model_, trace),
      train_(mesh.world(), task_.train, data_, batch_settings()),
      evaluator_(task_, mesh, model_, data_, evaluation_settings()),
      slowdown_(slowdown_of(mesh.world().rank())) {
  if (resumed == nullptr && task_.start) {
    model_.load_weights(*task_.start());
    require_finite(model_.held().weights, mesh_.world());
  }
  if (strategy::exchanges_weights(options.strategy))
    workers_.emplace(options.strategy, mesh, model_, options.components.servers);
  if (plan_.measure_noise && replicas(mesh.layout()) == 1 && mesh.world().rank() == 0)
    log_warn("train.noise_scale needs two replicas: the noise scale is not measured");
  // A step that a lost rank has interrupted leaves gradients in the blocks.
  model_.zero_grad();
  if (plan_.micro_shards > 0) at::set_num_threads(1);  // fixes the order of sums
  if (options.balance_by_speed) measure_speeds();
}

// Null also on several hosts without a store of the job: workers then get even parts.
std::unique_ptr<strategy::SharedBatches> Learner::make_shared() const {
  if (!strategy::is_asynchronous(options_.strategy)) return nullptr;
  auto shared = strategy::make_shared_batches(
      mesh_.world(), {mesh_.coordinate("dp"), mesh_.size("dp"), is_first_of_worker()},
      {.most_at_a_time = options_.strategy.staleness < 0 ? 4 : 1});
  if (!shared && mesh_.world().rank() == 0) {
    log_warn(
        "workers get even parts of each batch: they are on several hosts, and the job has no "
        "store; weft run starts one for several nodes, and a slow worker then takes fewer");
  }
  return shared;
}

TrainBatches::Settings Learner::batch_settings() {
  TrainBatches::Settings settings{.sampling = {.batch = batches_.global, .seed = plan_.seed},
                                  .prefetch = options_.prefetch,
                                  .shared = make_shared()};
  // In one process, the last batch of an epoch has samples for its batch norms.
  if (has_batch_norms()) settings.sampling.least = 2 * std::int64_t{plan_.micro_batches};
  return settings;
}

Evaluator::Settings Learner::evaluation_settings() const {
  const bool by_shards = plan_.micro_shards > 0;
  const std::int64_t parts = by_shards ? plan_.micro_shards : data_.replicas(),
                     even = std::max<std::int64_t>(1, batches_.global / parts);
  return {.block = options_.eval_batch > 0 ? options_.eval_batch : even,
          .passes = by_shards ? 1 : plan_.micro_batches,
          .prefetch = options_.prefetch > 0 ? 1 : 0};
}

// Ranks of a pipeline have different blocks.
bool Learner::has_batch_norms() {
  if (plan_.sync_batch_norm || plan_.micro_shards > 0) return false;
  at::Tensor any = at::zeros({1}, at::kInt);
  for (const checkpoint::Slice& buffer : model_.held().buffers) {
    if (buffer.name.ends_with("running_var")) any.fill_(1);
  }
  if (mesh_.world().size() > 1) mesh_.world().all_reduce(any, ReduceOp::kMax);
  return any.item<int>() > 0;
}

void Learner::begin_batches(std::int64_t begin, std::int64_t end, std::int64_t done) {
  train_.rewind();
  workers_->begin(done);
  train_.give_out(begin, end);
}

std::optional<std::int64_t> Learner::take_batch() {
  const observe::ActivityScope activity(observe::Activity::kData);
  const auto taken = train_.take();
  if (!taken) workers_->leave();
  return taken;
}

Evaluation Learner::evaluate() {
  if (!workers_) return evaluator_.evaluate();
  Evaluation result;
  workers_->with_result([&] { result = evaluator_.evaluate(); });
  return result;
}

int Learner::world_rank(int of_worker) const {
  if (!workers_) return of_worker;
  std::vector<std::string> axes;
  for (const auto& axis : worker_mesh_.layout().axes()) axes.push_back(axis.name);
  const auto ranks = mesh_.layout().members(mesh_.world().rank(), axes);
  return ranks.at(static_cast<std::size_t>(of_worker));
}

checkpoint::Parts Learner::parts(bool is_copy) {
  return workers_ ? workers_->parts(/*with_result=*/!is_copy) : model_.shards();
}

// Seeds libtorch's generator (dropout) from seed, step, replica, stage and position in cp. A
// resumed run then draws the same numbers as an uninterrupted one.
void Learner::seed_generator(int replica, std::int64_t pass) const {
  const auto place = static_cast<std::uint64_t>(
      (replica * mesh_.size("pp") + mesh_.coordinate("pp")) * mesh_.size("cp") +
      mesh_.coordinate("cp"));
  Random numbers(plan_.seed, kDraws + static_cast<std::uint32_t>(pass),
                 (static_cast<std::uint64_t>(model_.steps()) << 24) + place);
  at::manual_seed(numbers.next_u64());
}

Learner::Step Learner::step(std::int64_t number, double lr, observe::StepTimer& timer,
                            std::int64_t passes) {
  Step done;
  double global = 0;      // samples of all workers
  std::int64_t mine = 0;  // of this replica
  bool has_any = false;
  WEFT_REQUIRE(
      !rate_ || model_.lr() == *rate_,
      "set_lr() of the model in a callback has no effect, since Options::schedule sets the "
      "rate of each step; choose another schedule, or stop and resume with another rate in "
      "Options::plan");
  model_.set_lr(lr);
  rate_ = lr;
  model_.set_accumulate(static_cast<int>(passes));
  for (; done.passes < passes; ++done.passes) {
    const data::Batch batch = train_.next(timer);
    global += static_cast<double>(batch.share.global_size);
    mine += static_cast<std::int64_t>(batch.share.indices.size());
    if (!has_samples(batch.share)) continue;
    has_any = true;
    run_pass(batch, done);
  }
  if (done.losses.empty()) done.losses = {0};
  done.skipped = has_any && !update(done);
  count_times(timer);
  // A worker without samples still exchanges, since the others wait for it. Where workers take
  // batches when they are ready, nobody does.
  if (workers_ && !(shared() && !has_any)) {
    const auto scope = timer.time(Phase::kCommunication);
    // An update would have noticed what the program has written. An exchange replaces it.
    if (!has_any || done.skipped) model_.check_changes();
    workers_->after_step({number, lr, done.losses[0], global / mesh_.world().size()});
  }
  const double computed = (timer.ms(Phase::kForward) + timer.ms(Phase::kBackward)) / 1e3;
  if (speeds_) speeds_->add(mine, slowdown_ * computed);
  // The ranks of tp, pp and cp have the same samples.
  const bool counts = mesh_.coordinate("tp") + mesh_.coordinate("pp") + mesh_.coordinate("cp") == 0;
  done.samples = !shared() ? global : counts ? static_cast<double>(mine) : 0;
  return done;
}

// False if this worker has no sample of the batch: a small last batch of an epoch, or a share by
// speed. The same on all ranks of the worker.
bool Learner::has_samples(const data::Share& share) const {
  return !workers_ || share.group_size > 0;
}

void Learner::run_pass(const data::Batch& batch, Step& step) {
  seed_generator(data_.replica(), step.passes);
  observe::set_activity(observe::Activity::kForward);
  if (options_.verify_steps > 0 && (model_.steps() + 1) % options_.verify_steps == 0)
    model_.verify(batch.inputs, batch.targets, [this](int replica) { seed_generator(replica); });
  failpoint("forward.begin");
  std::vector<double> losses;
  {
    const SlowRank slow(slowdown_);
    losses = model_.forward_backward(batch.inputs, batch.targets);
  }
  if (step.losses.empty()) step.losses.assign(losses.size(), 0);
  for (std::size_t i = 0; i < losses.size(); ++i) step.losses[i] += losses[i];
}

// Returns false if the step was skipped.
bool Learner::update(Step& step) {
  const observe::TraceScope scope("phase", "optimizer");
  const observe::ActivityScope activity(observe::Activity::kOptimizer);
  failpoint("update.begin");
  const bool updated = model_.step();
  if (updated) step.noise = model_.gradient_noise();
  if (updated && (plan_.optimizer.max_grad_norm > 0 || step.noise))
    step.grad_norm = model_.grad_norm();
  model_.zero_grad();
  return updated;
}

void Learner::count_times(observe::StepTimer& timer) {
  const auto add = [&](Phase phase, double seconds) {
    timer.add(phase, std::chrono::nanoseconds(std::llround(seconds * 1e9)));
  };
  const parallel::ParallelModel::Times times = model_.take_times();
  add(Phase::kForward, times.forward);
  add(Phase::kBackward, times.backward);
  add(Phase::kCommunication, times.communication);
  add(Phase::kOptimizer, times.update);
}

void Learner::start_balancing() {
  if (!speeds_) measure_speeds();
}

// A slow replica keeps enough samples for its micro-batches: two for each if the model may have
// batch norms, which refuse one sample. Shares differ from their weights by up to one sample.
void Learner::measure_speeds() {
  const int all = replicas(mesh_.layout());
  if (all == 1) return;
  at::Tensor buffers = at::tensor({model_.held().buffers.empty() ? 0.0 : 1.0}, at::kDouble);
  mesh_.world().all_reduce(buffers, ReduceOp::kMax);
  const double of_micro_batch = 1 + buffers.item<double>(),
               least = of_micro_batch * plan_.micro_batches + 1,
               even = static_cast<double>(batches_.global) / all;
  speeds_.emplace(mesh_, std::clamp(least / even, data::BalanceOptions{}.smallest_share, 1.0));
}

void Learner::rebalance() {
  if (!speeds_) return;
  const auto weights = speeds_->rebalance();
  if (!weights) return;
  train_.set_weights(*weights);
  std::string shares;
  for (const double weight : *weights)
    shares.append(shares.empty() ? "" : " ")
        .append(std::to_string(std::lround(100 * weight)))
        .append("%");
  log_debug("shares of the batches to come, by speed", {{"shares", shares}});
}

// Each pipeline stage has its own layers. Their loads are already summed over all ranks that share
// the batch.
std::optional<Learner::ExpertUse> Learner::expert_use() {
  if (task_.model.experts == 0) return std::nullopt;
  at::Tensor most = at::ones({1}, at::kDouble),
             choices = at::zeros({2}, at::kDouble);  // dropped, total
  for (const auto& [layer, load] : model_.take_expert_loads()) {
    most.clamp_min_(load.imbalance());
    choices[0] += std::accumulate(load.dropped.begin(), load.dropped.end(), 0.0);
    choices[1] += std::accumulate(load.wanted.begin(), load.wanted.end(), 0.0);
  }
  mesh_["pp"].all_reduce(most, ReduceOp::kMax);
  mesh_["pp"].all_reduce(choices);
  return ExpertUse{most.item<double>(),
                   choices[0].item<double>() / std::max(1.0, choices[1].item<double>())};
}

}  // namespace weft::train::internal
