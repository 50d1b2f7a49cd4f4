#include "weft/parallel/compose/internal/composed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "weft/engine/squares.h"
#include "weft/kernels/tree_sum.h"
#include "weft/parallel/compose/internal/autocast.h"

// A step. What is saved is in whole.cc.
namespace weft::parallel::internal {

using schedule::pipeline::Work;

const Parameter* Stage::find(const std::string& own) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.own == own; });
  return found == parameters.end() ? nullptr : &*found;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Masks of a micro-batch, of one block: more than there are.
constexpr std::uint64_t kMasks = std::uint64_t{1} << 20;

Plan as_it_runs(Plan plan, const Mesh& mesh) {
  plan.micro_batches = micro_batches(plan, mesh.layout());
  return plan;
}

}  // namespace

std::vector<at::Tensor> Stage::tied_weights() const {
  std::vector<at::Tensor> all;
  for (const Block& block : blocks) {
    for (const auto& [name, tensor] : block.tied) all.push_back(tensor);
  }
  return all;
}

Composed::Composed(BlockModel model_, Plan plan_, const Mesh& mesh_)
    : model(std::move(model_)), plan(as_it_runs(std::move(plan_), mesh_)), mesh(mesh_), rule(plan.optimizer.rule) {
  WEFT_REQUIRE(!model.blocks.empty() && model.loss, "parallelize: the model needs a block and a loss");
}

void Composed::abort(const Error& error) const {
  for (const char* axis : {"pp", "tp", "cp", "ep"}) mesh[axis].abort(error);
  replicas().abort(error);
  sharers().abort(error);
  mesh.world().abort(error);
  for (const Stage& stage : stages) {
    if (stage.sharded) stage.sharded->abandon();
  }
}

// Of all replicas.
double Composed::samples_of_batch() {
  at::Tensor all = at::full({1}, samples_, at::kDouble);
  guarded([&] { replicas().all_reduce(all); });
  WEFT_REQUIRE(all.item<double>() > 0, "train_step: no rank gives a sample");
  return all.item<double>();
}

// A pipeline weighs micro-batches by the rows that it is told of, one at least, and the loss of each counts `factor` times its part of the
// true rows.
std::vector<Composed::Part> Composed::even_parts(std::int64_t rows, double factor) const {
  const std::int64_t count = plan.micro_batches;
  const auto told = static_cast<double>(std::max(rows, count));
  std::vector<Part> parts;
  for (std::int64_t i = 0, begin = 0; i < count; ++i) {
    Part part{.begin = begin, .rows = rows / count + (i < rows % count ? 1 : 0), .told = 0, .weight = 0};
    begin += part.rows;
    part.told = std::max<std::int64_t>(1, part.rows);
    if (part.rows > 0)
      part.weight = factor * (static_cast<double>(part.rows) / static_cast<double>(rows) / (static_cast<double>(part.told) / told));
    parts.push_back(part);
  }
  return parts;
}

// Cuts that depend on the batch of `all` samples alone: part i of n begins at sample floor(all · i / n).
std::vector<Composed::Part> Composed::micro_shards(double all, double factor) const {
  const std::int64_t first = static_cast<std::int64_t>(replica()) * plan.micro_batches;
  const auto begin = [&](std::int64_t i) { return static_cast<std::int64_t>(all) * i / plan.micro_shards; };
  const std::int64_t mine = begin(first + plan.micro_batches) - begin(first);
  WEFT_REQUIRE(static_cast<std::int64_t>(samples_) == mine,
               "train_step: with micro_shards replica " + std::to_string(replica()) + " of " + std::to_string(replicas().size()) +
                   " gives samples floor(n r / replicas) to floor(n (r + 1) / replicas) of all n, here " + std::to_string(mine) + ", not " +
                   std::to_string(static_cast<std::int64_t>(samples_)));
  std::vector<Part> parts;
  for (std::int64_t i = first; i < first + plan.micro_batches; ++i) {
    const std::int64_t rows = begin(i + 1) - begin(i);
    parts.push_back({begin(i) - begin(first), rows, 1, factor * (static_cast<double>(rows) / all) * plan.micro_batches});
  }
  return parts;
}

// Before the targets stands a tensor of as many rows as the pipeline is told, behind them the weight. Micro-batches of no row get one of
// zeros, which counts nothing, but for experts, which would count it. Micro-shards are copies, which lie alike wherever they are computed.
Composed::Cut Composed::cut(const Tensors& inputs, const Tensors& targets, const std::vector<Part>& parts) const {
  const std::int64_t rows = inputs[0].size(0);
  Cut cut{std::vector<Tensors>(parts.size()), std::vector<Tensors>(parts.size())};
  const auto deal = [&](const Tensors& from, std::vector<Tensors>& to, const char* what) {
    for (const at::Tensor& whole : from) {
      WEFT_REQUIRE(whole.dim() > 0 && whole.size(0) == rows,
                   std::string("train_step: all ") + what + " have one entry a sample along the first dimension, as the first input");
      std::vector<std::int64_t> one = whole.sizes().vec();
      one[0] = 1;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool made_up = parts[i].rows == 0 && model.experts == 0;
        const at::Tensor piece = made_up ? at::zeros(one, whole.options()) : whole.narrow(0, parts[i].begin, parts[i].rows);
        to[i].push_back(plan.micro_shards > 0 ? piece.clone() : piece);
      }
    }
  };
  deal(inputs, cut.inputs, "inputs");
  if (!pipeline->has_last_stage()) return cut;
  WEFT_REQUIRE(!targets.empty(), "train_step: this rank reads the targets, and there are none");
  for (std::size_t i = 0; i < parts.size(); ++i) cut.targets[i].push_back(at::zeros({1}).expand({parts[i].told}));
  deal(targets, cut.targets, "targets");
  for (std::size_t i = 0; i < parts.size(); ++i) cut.targets[i].push_back(at::scalar_tensor(parts[i].weight, at::kDouble));
  return cut;
}

at::Tensor Composed::loss_of(const Tensors& outputs, const Tensors& targets) {
  const Autocast autocast(precision);
  const double weight = targets.back().item<double>();
  const at::Tensor loss = model.loss(outputs, Tensors(targets.begin() + 1, targets.end() - 1), contexts());
  if (!losses_.empty() && at::GradMode::is_enabled()) {
    const auto part = static_cast<std::size_t>(micro_batch_);
    const std::int64_t rows = shards_[part].rows;
    losses_[static_cast<std::size_t>(replica()) * shards_.size() + part] = rows == 0 ? 0 : loss.item<double>() * static_cast<double>(rows);
  }
  return weight == 1 ? loss : loss * weight;
}

// Gradients leave in the last backward of a stage, where nothing stands against it.
void Composed::before(const schedule::pipeline::Action& action) {
  began_ = Clock::now();
  span_.emplace("stage", schedule::pipeline::describe(action).c_str());
  micro_batch_ = action.micro_batch;
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->let_go();
    // Some of libtorch's operations (layer_norm) read the weight for the weight's own gradient too.
    if (stage.sharded && stage.number == action.stage && action.work == Work::kBackwardWeight) stage.sharded->hold();
    if (stage.number == action.stage && action.work == Work::kForward) seed_dropout(stage);
  }
  const bool makes_gradients = action.work == Work::kBackward || action.work == Work::kBackwardWeight;
  if (!makes_gradients || action.micro_batch + 1 != plan.micro_batches) return;
  for (Stage& stage : stages) {
    if (stage.number != action.stage || stage.tied || stage.tree || !stage.sharded || sharding.stage == 1 || !is_last_batch()) continue;
    stage.sharded->set_samples(samples_);
    stage.kept.reset();
  }
}

void Composed::after(const schedule::pipeline::Action& action) {
  span_.reset();
  (action.work == Work::kForward ? times.forward : times.backward) += seconds_since(began_) - take_waits();
  if (action.work != Work::kBackward && action.work != Work::kBackwardWeight) return;
  for (Stage& stage : stages) {
    if (stage.number != action.stage || !stage.tree || !stage.tree->take(action.micro_batch)) continue;
    // Over the replicas before over the stages, as one process has it.
    for (const at::Tensor& tied : stage.tied_weights()) {
      if (tied.grad().defined() && replicas().size() > 1) replicas().all_reduce(tied.mutable_grad());
    }
  }
}

// With micro-shards all replicas have the whole sum, which counts once.
void Composed::count_tied_once() {
  for (Stage& stage : stages) {
    if (!stage.tree || replica() == 0) continue;
    for (const at::Tensor& tied : stage.tied_weights()) tied.mutable_grad() = at::Tensor();
  }
}

// By the batch and the micro-batch among those of all replicas, so that a resumed run drops what the uninterrupted one does.
void Composed::seed_dropout(const Stage& stage) const {
  const std::int64_t batch = steps * plan.accumulate + batches_, first = (batch * replicas().size() + replica()) * plan.micro_batches;
  for (const TensorParallel& of_block : stage.tp) of_block.set_draw(static_cast<std::uint64_t>(first + micro_batch_) * kMasks);
}

double Composed::run(const Tensors& inputs, const Tensors& targets, bool training) {
  WEFT_REQUIRE(!inputs.empty() && inputs[0].dim() > 0, "train_step: every rank gives the inputs of its replica");
  samples_ = static_cast<double>(inputs[0].size(0));
  if (training) return train(inputs, targets);
  const Cut parts = cut(inputs, targets, even_parts(inputs[0].size(0), 1));
  return guarded([&] { return mean_over_replicas(pipeline->evaluate(parts.inputs, parts.targets)); });
}

double Composed::train(const Tensors& inputs, const Tensors& targets) {
  WEFT_REQUIRE(!replicates() || kept_batches_ < plan.accumulate,
               "train_step: step() after each " + std::to_string(plan.accumulate) + " of them; the plan's `accumulate` says how many");
  const bool by_shards = plan.micro_shards > 0, sums = sharding.average == ShardedOptions::Average::kSum;
  // Where gradients are summed, losses count by samples beforehand; ranks of cp have cp times their share of a gradient
  // (ContextParallel::mean).
  const double all = sums ? samples_of_batch() : 0, share = sums && !by_shards ? samples_ / all / mesh.size("cp") : 1;
  const double factor = share * scale() / plan.accumulate;
  shards_ = by_shards ? micro_shards(all, factor) : even_parts(inputs[0].size(0), factor);
  losses_.assign(static_cast<std::size_t>(plan.micro_shards), 0);
  const Cut parts = cut(inputs, targets, shards_);
  return guarded([&] {
    const auto begin = Clock::now();
    const double computed = times.forward + times.backward;
    stepped_ = false;
    for (Stage& stage : stages) {
      if (stage.sharded) stage.kept.reset(new Sharded::NoSync(stage.sharded->no_sync()));
    }
    const double loss = pipeline->train_step(parts.inputs, parts.targets) / factor;
    count_tied_once();
    for (Stage& stage : stages) {
      if (stage.sharded) stage.sharded->let_go();
      if (!stage.kept || !is_last_batch()) continue;
      stage.kept.reset();
      stage.sharded->set_samples(samples_);
      stage.sharded->send_gradients();
    }
    ++batches_;
    ++kept_batches_;
    const double mean = plan.own_loss ? (samples_ > 0 ? loss : 0) : by_shards ? mean_of_micro_shards(all) : mean_over_replicas(loss);
    times.communication += seconds_since(begin) - (times.forward + times.backward - computed);
    return mean;
  });
}

double Composed::take_waits() {
  double waits = 0;
  for (Stage& stage : stages) waits += stage.sharded ? stage.sharded->take_times().wait : 0;
  return waits;
}

void Composed::wait_for_weights() {
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->wait_for_weights();
  }
}

double Composed::mean_over_replicas(double loss) {
  if (replicas().size() == 1) return loss;
  at::Tensor sums = at::tensor({samples_ > 0 ? loss * samples_ : 0, samples_}, at::kDouble);
  replicas().all_reduce(sums);
  return sums[0].item<double>() / sums[1].item<double>();
}

double Composed::mean_of_micro_shards(double all) {
  at::Tensor sums = at::tensor(losses_, at::kDouble);
  mesh.world().all_reduce(sums);
  return kernels::tree_sum(sums.const_data_ptr<double>(), losses_.size()) / all;
}

Tensors Composed::predict(const Tensors& inputs) {
  return guarded([&] {
    const Tensors outputs = pipeline->predict(inputs);
    return outputs.empty() || !model.join ? outputs : model.join(outputs, contexts());
  });
}

// One number over the world, so that all have the same bits of it: this rank's shards of one replica, or its part of what all replicas
// have.
double Composed::norm_of_gradients() {
  // Replicas of a whole model have it from the sums, without another pass over them.
  const bool alone = replicates() && copies().size() == mesh.world().size() && plan.micro_shards == 0;
  if (alone && stages[0].sharded) return stages[0].sharded->grad_norm() / scale();
  std::vector<at::Tensor> pieces;
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    stage.sharded->each_gradient([&](const std::string& own, const at::Tensor& piece) {
      const Parameter* const p = stage.find(own);
      const bool counted = (replicates() || is_first_copy()) && !p->copy && (p->slice || tp.rank() == 0) && (p->expert || is_first_of_ep());
      if (counted) pieces.push_back(piece);
    });
  }
  if (plan.micro_shards > 0) return std::sqrt(squares_in_any_order(mesh.world(), pieces)) / scale();
  double squares = 0;
  for (const at::Tensor& piece : pieces) squares += squares_of(piece);
  at::Tensor sum = at::full({1}, squares, at::kDouble);
  mesh.world().all_reduce(sum);
  return std::sqrt(sum.item<double>()) / scale();
}

double Composed::grad_norm() {
  if (stepped_ && norm_ >= 0) return norm_;
  WEFT_REQUIRE(!stepped_, "grad_norm: ask before step(), or let the plan clip or scale");
  return guarded([&] { return norm_of_gradients(); });
}

void Composed::await_gradients() {
  const auto begin = Clock::now();
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->await_gradients();
  }
  times.communication += seconds_since(begin);
}

bool Composed::step() {
  return guarded([&] {
    for (Stage& stage : stages) {
      if (!std::exchange(stage.kept, nullptr)) continue;
      stage.sharded->set_samples(samples_);  // fewer batches than the plan accumulates
    }
    if (!replicates()) await_gradients();
    double factor = 1 / scale();
    norm_ = -1;
    if (max_norm > 0 || scaler) {
      const double norm = norm_of_gradients();
      const bool finite = std::isfinite(norm);
      if (scaler) scaler->update(finite);
      if (scaler && !finite) {
        zero_grad();
        return false;
      }
      norm_ = norm;
      if (max_norm > 0) factor *= std::min(1.0, max_norm / (norm + 1e-6));  // torch's own guard against a norm of zero
    }
    for (Stage& stage : stages) {
      if (stage.sharded) stage.sharded->step(factor);
    }
    times.communication += take_waits();
    stepped_ = true;
    batches_ = kept_batches_ = 0;
    ++steps;
    return true;
  });
}

void Composed::zero_grad() {
  kept_batches_ = 0;
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->zero_grad();
  }
}

}  // namespace weft::parallel::internal
