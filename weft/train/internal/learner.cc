#include "weft/train/internal/learner.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/random.h"
#include "weft/observe/position/position.h"
#include "weft/train/internal/slow_rank.h"

namespace weft::train {
namespace internal {
namespace {

using observe::Phase;

constexpr std::uint32_t kDraws = 0x64726177;  // a stream of random numbers: "draw"

// Fills in the batch size and the number of micro-batches of the plan.
parallel::Plan complete(const Options& options, const Mesh& mesh, std::int64_t batch) {
  parallel::Plan plan = options.plan;
  if (plan.micro_batches == 0)
    plan.micro_batches = mesh.size("pp") > 1 && plan.micro_shards == 0 ? 4 * mesh.size("pp") : 1;
  plan.batch = batch;
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
  if (plan.cuts.empty() && resumed != nullptr)
    plan.cuts = parallel::ParallelModel::cuts_of(mesh, resumed->reader());
  if (plan.cuts.empty() && plan.sample.empty() && mesh.size("pp") > 1)
    plan.sample = sample_of(task.train, plan, mesh);
  return plan;
}

// A pass may be as large as it was before the job was resized.
BatchDivision division_of(const Options& options, const parallel::Plan& plan, int replicas,
                          const Saved* resumed) {
  BatchDivision division{plan.batch, replicas, 0,
                         options.reference_batch > 0 ? options.reference_batch : plan.batch};
  if (plan.micro_shards > 0) return division;
  const std::int64_t share = (plan.batch + replicas - 1) / replicas;
  division.pass = (share + plan.micro_batches - 1) / plan.micro_batches;
  if (resumed != nullptr) division.pass = std::max(division.pass, resumed->batch().pass);
  return division;
}

// Wraps the source so that the trace records each batch that it prepares.
data::Source traced(const data::Source& source, observe::Trace* trace) {
  if (trace == nullptr) return source;
  return {source.size, [make = source.make, trace](const data::Share& share) {
            const observe::Trace::Use here(trace, "batches");
            const observe::TraceScope scope("data", "make batch");
            return make(share);
          }};
}

// float64 [2]: the sum and the number of samples.
at::Tensor sum_and_count(const at::Tensor& value, std::int64_t samples, const std::string& name) {
  WEFT_REQUIRE(value.defined() && (value.numel() == 1 || value.numel() == 2),
               "the metric " + name +
                   " gives no number: return the mean over the samples, or the sum and the count");
  const at::Tensor numbers = value.detach().to(at::kDouble).reshape({-1});
  if (numbers.numel() == 2) return numbers;
  return at::stack({numbers[0] * static_cast<double>(samples),
                    at::scalar_tensor(static_cast<double>(samples), at::kDouble)});
}

std::vector<Metric> with_loss(const Task& task) {
  std::vector<Metric> all = task.metrics;
  const bool has = std::any_of(all.begin(), all.end(),
                               [](const Metric& metric) { return metric.name == "loss"; });
  if (!has) all.insert(all.begin(), Metric{"loss", task.model.loss});
  return all;
}

}  // namespace

void check_learner(const parallel::BlockModel& model, const Options& options, const Mesh& mesh,
                   std::int64_t samples) {
  const std::int64_t batch =
      options.batch_per_rank > 0 ? options.batch_per_rank * replicas(mesh.layout()) : options.batch;
  if (strategy::exchanges_weights(options.strategy)) check_workers(options, mesh);
  parallel::check_plan(complete(options, mesh, batch), parallel::shape_of(model), mesh.layout());
  plan_batches(options, replicas(mesh.layout()), samples);
  if (options.plan.micro_shards > 0 && !mesh.world().has_ordered_sums()) {
    throw Error(Errc::kBadConfig,
                "train.reproducible needs gradients summed in a fixed order, but the transport of "
                "this group chooses its own order; make the group with "
                "InitOptions::ordered_sums, as weft train does");
  }
}

Learner::Learner(Task task, const Options& options, const Mesh& mesh, const Saved* resumed,
                 observe::Trace* trace)
    : task_(std::move(task)),
      options_(options),
      mesh_(mesh),
      worker_mesh_(worker_mesh(mesh, options.strategy)),
      metrics_(with_loss(task_)),
      batches_(plan_batches(options, replicas(mesh.layout()), task_.train.size)),
      trace_(trace),
      plan_(plan_for(task_, options, mesh, batches_.global, resumed)),
      division_(division_of(options, plan_, replicas(mesh.layout()), resumed)),
      model_(parallel::parallelize(task_.model, of_worker(plan_, options, mesh), worker_mesh_)),
      shared_(make_shared()),
      loader_(make_train_loader()),
      slowdown_(slowdown_of(mesh.world().rank())) {
  if (strategy::exchanges_weights(options.strategy))
    workers_.emplace(options.strategy, mesh, model_);
  // A step that a lost rank has interrupted leaves gradients in the blocks.
  model_.zero_grad();
  if (plan_.micro_shards > 0) at::set_num_threads(1);  // fixes the order of sums
  if (options.balance_by_speed && replicas(mesh.layout()) > 1) speeds_.emplace(mesh);
}

data::Loader Learner::make_loader(const data::Source& source, const data::SamplerOptions& sampling,
                                  int prefetch) const {
  data::SamplerOptions mine = sampling;
  mine.size = source.size;
  mine.rank = replica();
  mine.world = replicas(mesh_.layout());
  return data::Loader(traced(source, trace_), data::Sampler(mine), prefetch);
}

// Index of this rank's share of a batch, over all workers.
int Learner::replica() const {
  const bool several = strategy::exchanges_weights(options_.strategy);
  return (several ? mesh_.coordinate("dp") * model_.replicas() : 0) + model_.replica();
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
void Learner::seed_generator(int replica) const {
  const auto place = static_cast<std::uint64_t>(
      (replica * mesh_.size("pp") + mesh_.coordinate("pp")) * mesh_.size("cp") +
      mesh_.coordinate("cp"));
  Random numbers(plan_.seed, kDraws, (static_cast<std::uint64_t>(model_.steps()) << 24) + place);
  at::manual_seed(numbers.next_u64());
}

Learner::Step Learner::step(std::int64_t number, double lr, observe::StepTimer& timer) {
  const data::Batch batch = next_batch(timer);
  model_.set_lr(lr);
  std::vector<double> losses{0};
  std::optional<double> grad_norm;
  const bool has_none = !has_samples(batch.share);
  const bool updated = has_none || update(batch, losses, grad_norm);
  count_times(timer);
  if (workers_ && !(shared_ && has_none)) {
    const auto scope = timer.time(Phase::kCommunication);
    const double samples = static_cast<double>(batch.share.global_size) / mesh_.world().size();
    workers_->after_step({number, lr, losses.empty() ? 0 : losses[0], samples});
  }
  const auto mine = static_cast<std::int64_t>(batch.share.indices.size());
  if (speeds_) speeds_->add(mine, (timer.ms(Phase::kForward) + timer.ms(Phase::kBackward)) / 1e3);
  // The ranks of tp, pp and cp have the same samples.
  const bool counts = mesh_.coordinate("tp") + mesh_.coordinate("pp") + mesh_.coordinate("cp") == 0;
  const std::int64_t samples = !shared_ ? batch.share.global_size : counts ? mine : 0;
  return {static_cast<double>(samples), std::move(losses), grad_norm, !updated};
}

// False if the last batch of an epoch is so small that this worker has no sample of it.
bool Learner::has_samples(const data::Share& share) const {
  const int all = replicas(mesh_.layout());
  if (!workers_ || share.global_size >= all) return true;
  if (shared_) return model_.replicas() > 1 || !share.indices.empty();
  const int first = replica() - model_.replica(), last = first + model_.replicas() - 1;
  return data::share_of(share.global_size, first, all).begin <
         data::share_of(share.global_size, last, all).end;
}

// Returns false if the step was skipped.
bool Learner::update(const data::Batch& batch, std::vector<double>& losses,
                     std::optional<double>& grad_norm) {
  seed_generator(replica());
  observe::set_activity(observe::Activity::kForward);
  if (options_.verify_steps > 0 && (model_.steps() + 1) % options_.verify_steps == 0)
    model_.verify(batch.inputs, batch.targets, [this](int replica) { seed_generator(replica); });
  failpoint("forward.begin");
  {
    const SlowRank slow(slowdown_);
    losses = model_.forward_backward(batch.inputs, batch.targets);
  }
  const observe::TraceScope scope("phase", "optimizer");
  const observe::ActivityScope activity(observe::Activity::kOptimizer);
  failpoint("update.begin");
  const bool updated = model_.step();
  if (updated && plan_.optimizer.max_grad_norm > 0) grad_norm = model_.grad_norm();
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
  if (!speeds_ && replicas(mesh_.layout()) > 1) speeds_.emplace(mesh_);
}

void Learner::rebalance() {
  if (!speeds_) return;
  const auto weights = speeds_->rebalance();
  if (!weights) return;
  loader_.set_weights(*weights);
  std::string shares;
  for (const double weight : *weights)
    shares.append(shares.empty() ? "" : " ")
        .append(std::to_string(std::lround(100 * weight)))
        .append("%");
  log_debug("shares of the batches to come, by speed", {{"shares", shares}});
}

void Learner::end_epoch() {
  if (shared_) {
    position_ = {position_.epoch + 1, 0};
    return;
  }
  WEFT_CHECK(!loader_.next(Deadline::in(mesh_.world().timeout())),
             "the epoch has more batches than steps");
}

// float64 [metrics, 2]: sum and count of each metric over the samples of a block. Only the first
// rank that holds the outputs returns them; the others return zeros. Every replica runs every pass:
// with too few samples it repeats one, which is not counted.
at::Tensor Learner::measure(const data::Batch& batch, bool mine) {
  const std::int64_t rows = mine ? batch.inputs[0].size(0) : 0;
  const std::int64_t passes = plan_.micro_shards > 0 ? 1 : plan_.micro_batches,
                     missing = std::max<std::int64_t>(0, passes - rows);
  parallel::Tensors inputs;
  for (const at::Tensor& input : batch.inputs) {
    std::vector<at::Tensor> parts(static_cast<std::size_t>(missing), input.narrow(0, 0, 1));
    parts.insert(parts.begin(), input.narrow(0, 0, rows));
    inputs.push_back(missing == 0 ? parts[0] : at::cat(parts));
  }
  parallel::Tensors outputs = model_.predict(inputs);
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(metrics_.size()), 2}, at::kDouble);
  if (outputs.empty() || rows == 0 || mesh_.coordinate("cp") > 0) return sums;
  const at::NoGradGuard no_grad;
  for (at::Tensor& output : outputs) {
    if (output.dim() > 0 && output.size(0) == rows + missing) output = output.narrow(0, 0, rows);
    if (output.scalar_type() == at::kHalf || output.scalar_type() == at::kBFloat16)
      output = output.to(at::kFloat);
  }
  parallel::Contexts contexts;
  contexts.tp = parallel::TensorParallel(mesh_["tp"], 0);
  for (std::size_t i = 0; i < metrics_.size(); ++i)
    sums[static_cast<std::int64_t>(i)] =
        sum_and_count(metrics_[i].of(outputs, batch.targets, contexts), rows, metrics_[i].name);
  return mesh_.coordinate("tp") == 0 ? sums : at::zeros_like(sums);
}

Evaluation Learner::evaluate() {
  if (!workers_) return evaluate_weights();
  Evaluation result;
  workers_->with_result([&] { result = evaluate_weights(); });
  return result;
}

Evaluation Learner::evaluate_weights() {
  Evaluation result;
  result.samples = task_.test.size;
  if (result.samples == 0) return result;
  const int world = replicas(mesh_.layout());
  const std::int64_t parts = plan_.micro_shards > 0 ? plan_.micro_shards : world;
  const std::int64_t block = options_.eval_batch > 0
                                 ? options_.eval_batch
                                 : std::max<std::int64_t>(1, batches_.global / parts);
  const std::int64_t blocks = (result.samples + block - 1) / block;
  data::Loader loader = make_loader(task_.test, {.batch = block, .order = data::Order::kSequential},
                                    options_.prefetch > 0 ? 1 : 0);
  at::Tensor all = at::zeros({blocks, static_cast<std::int64_t>(metrics_.size()), 2}, at::kDouble);
  std::optional<data::Batch> last;  // placeholder in rounds without a block for this replica
  for (std::int64_t round = 0; round * world < blocks; ++round) {
    const std::int64_t number = round * world + replica();
    if (number < blocks) last = loader.next(Deadline::in(mesh_.world().timeout()));
    if (!last) last = task_.test.make(data::Share{.indices = {0}, .global_size = 1});
    const at::Tensor sums = measure(*last, number < blocks);
    if (number < blocks) all[number] = sums;
  }
  mesh_.world().all_reduce(all);
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(metrics_.size()), 2}, at::kDouble);
  for (std::int64_t i = 0; i < blocks; ++i) sums += all[i];
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double count = sums[at][1].item<double>(),
                 mean = count > 0 ? sums[at][0].item<double>() / count : 0;
    if (metrics_[i].name == "loss") {
      result.loss = mean;
    } else {
      result.metrics.emplace_back(metrics_[i].name, mean);
    }
  }
  return result;
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

}  // namespace internal

double Evaluation::metric(const std::string& name) const {
  const auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [&](const auto& one) { return one.first == name; });
  return found == metrics.end() ? 0 : found->second;
}

}  // namespace weft::train
