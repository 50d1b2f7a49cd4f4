// A training step up to its gradients. cutting.cc divides the batch, ending.cc has the rest of the
// step, model_state.cc and model_slices.cc the saved state.
//
//   train()   weights of the losses ─► no_sync() for each stage (Stage::kept) ─► pipeline
//               begin_action() ─ forward or backward of a micro-batch ─ end_action()
//             ─► tied gradients count once ─► sends what has not left ─► running statistics
//
// When gradients leave their rank: inside no_sync() they add up over micro-batches. begin_action()
// ends it before the last backward of a stage, so they leave during that backward. Some must wait
// until the pipeline has ended, and train() sends them: tied ones and those of a GradientTree,
// which other code adds up first, and those of ZeRO-1. Engines of whole stages (replicates()) send
// once for all accumulated batches, others once for each batch.
//
// Weights of losses: engines average gradients by samples, so a loss counts 1 / accumulate times
// the loss scale. If gradients are summed instead, each loss is multiplied by its share of all
// samples first, which costs an all-reduce before the batch.
//
// Threads: one thread calls it. The pipeline calls begin_action() and end_action() on the same
// thread. Errors: guarded() aborts all groups of this rank, since ranks of any axis may wait for
// it. It covers the checks of a batch too, since another rank may have accepted its own. Outside
// are only checks that fail on all ranks alike; the groups outlive them.
#include "weft/parallel/compose/internal/composed.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>

#include "weft/base/deadline.h"
#include "weft/kernels/tree_sum.h"
#include "weft/observe/position/position.h"
#include "weft/parallel/compose/internal/on_device.h"

namespace weft::parallel::internal {

using schedule::pipeline::Work;

namespace {

using Clock = std::chrono::steady_clock;

// Upper bound on the dropout masks of a block in one micro-batch.
constexpr std::uint64_t kMasks = std::uint64_t{1} << 20;

// Shards of gradients are not in grad().
bool has_gradients(const Composition& composed) {
  if (!composed.replicates()) return true;
  for (const Stage& stage : composed.stages) {
    for (const Block& block : stage.blocks) {
      for (const at::Tensor& parameter : block.module->parameters()) {
        if (parameter.grad().defined()) return true;
      }
    }
  }
  return false;
}

}  // namespace

Composed::Composed(BlockModel model_, Plan plan_, const Mesh& mesh_)
    : Composition(std::move(model_), std::move(plan_), mesh_),
      state_(*this),
      verifier_(*this, [this](const Tensors& inputs, const Tensors& targets, int shift) {
        return checksums_of(inputs, targets, shift);
      }) {
  loss_of = [this](const Tensors& y, const Tensors& t) { return loss_of_part(y, t); };
  before = [this](const schedule::pipeline::Action& action) { begin_action(action); };
  after = [this](const schedule::pipeline::Action& action) { end_action(action); };
  compose(*this);
}

// Of all replicas.
double Composed::samples_of_batch() {
  at::Tensor all = at::full({1}, samples_, at::kDouble);
  guarded([&] { replicas().all_reduce(all); });
  WEFT_REQUIRE(all.item<double>() > 0, "train_step: no rank has a sample");
  return all.item<double>();
}

// Gradients are sent during the last backward of a stage, unless an option forbids it.
void Composed::begin_action(const schedule::pipeline::Action& action) {
  began_ = Clock::now();
  observe::set_activity(action.work == Work::kForward ? observe::Activity::kForward
                                                      : observe::Activity::kBackward);
  span_.emplace("stage", schedule::pipeline::describe(action).c_str());
  micro_batch_ = action.micro_batch;
  for (Stage& stage : stages) {
    // Ends the unshard() of an earlier backward-weight.
    if (stage.sharded) stage.sharded->reshard();
    // Some of libtorch's operations (layer_norm) read the weight to compute the weight's gradient.
    if (stage.sharded && stage.number == action.stage && action.work == Work::kBackwardWeight)
      stage.sharded->unshard();
    if (stage.number != action.stage) continue;
    stage.made_up.reset();  // of an error
    const bool forward = action.work == Work::kForward;
    if (is_made_up(action.micro_batch))
      stage.made_up = std::make_unique<MadeUp>(stage.blocks, forward);
    if (!forward) continue;
    seed_dropout(stage);
    if (plan.micro_shards > 0 && !stage.statistics.empty()) stage.statistics.restore();
  }
  const bool makes_gradients =
      action.work == Work::kBackward || action.work == Work::kBackwardWeight;
  // Under every schedule, the backwards of a stage come by rising micro-batch, so this is its last
  // one.
  if (!makes_gradients || action.micro_batch + 1 != plan.micro_batches) return;
  for (Stage& stage : stages) {
    if (stage.number != action.stage || stage.tied || stage.tree || !stage.sharded ||
        sharding.stage == 1 || !is_last_batch())
      continue;
    stage.sharded->set_samples(samples_);
    stage.kept.reset();
  }
}

void Composed::end_action(const schedule::pipeline::Action& action) {
  span_.reset();
  wait_for(plan.device);  // its time counts here
  const auto spent = take_engine_times();
  (action.work == Work::kForward ? times.forward : times.backward) +=
      seconds_since(began_) - spent.wait - spent.work;
  times.communication += spent.wait;
  times.update += spent.work;
  for (Stage& stage : stages) {
    if (stage.number != action.stage) continue;
    stage.made_up.reset();
    if (plan.micro_shards > 0 && action.work == Work::kForward && !stage.statistics.empty())
      stage.statistics.take(action.micro_batch, !is_made_up(action.micro_batch));
  }
  if (action.work != Work::kBackward && action.work != Work::kBackwardWeight) return;
  for (Stage& stage : stages) {
    if (stage.number != action.stage || !stage.tree || !stage.tree->take(action.micro_batch))
      continue;
    // Sums over the replicas before the stages, in the order of one process.
    for (const at::Tensor& tied : stage.tied_weights()) {
      if (tied.grad().defined() && replicas().size() > 1)
        replicas().all_reduce(tied.mutable_grad());
    }
  }
}

bool Composed::is_made_up(int micro_batch) const {
  return shards_[static_cast<std::size_t>(micro_batch)].rows == 0 && model.experts == 0 &&
         !plan.sync_batch_norm;
}

// With micro-shards, all replicas have the whole sum, so it counts once.
void Composed::count_tied_once() {
  for (Stage& stage : stages) {
    if (!stage.tree || replica() == 0) continue;
    for (const at::Tensor& tied : stage.tied_weights()) tied.mutable_grad() = at::Tensor();
  }
}

// The draw depends on the batch and on the micro-batch among those of all replicas, so that a
// resumed run has the same dropout as an uninterrupted one.
void Composed::seed_dropout(const Stage& stage) const {
  const std::int64_t batch = steps * plan.accumulate + batches_,
                     first = (batch * replicas().size() +
                              (replica() + replica_shift_) % replicas().size()) *
                             plan.micro_batches;
  for (const TensorParallel& of_block : stage.tp)
    of_block.set_draw(static_cast<std::uint64_t>(first + micro_batch_) * kMasks);
}

void Composed::require_inputs(const Tensors& inputs, const std::string& operation) const {
  guarded([&] {
    WEFT_REQUIRE(!inputs.empty() && inputs[0].dim() > 0,
                 operation + ": every rank must pass the inputs of its replica");
  });
}

double Composed::run(const Tensors& inputs, const Tensors& targets, bool training) {
  require_inputs(inputs, training ? "train_step" : "evaluate");
  if (training) {
    const double loss = train(inputs, targets);
    return guarded([&] {
      const auto begin = Clock::now();
      const double mean = plan.micro_shards > 0 ? mean_of_micro_shards(all_samples_)
                                                : mean_over_replicas(loss, samples_);
      times.communication += seconds_since(begin);
      return mean;
    });
  }
  return guarded([&] {
    const std::int64_t samples = inputs[0].size(0);
    const Cut parts = cut(inputs, targets, even_parts(samples, 1));
    const double loss = pipeline->evaluate(parts.inputs, parts.targets);
    return mean_over_replicas(loss, static_cast<double>(samples));
  });
}

void Composed::set_accumulate(int batches) {
  WEFT_REQUIRE(batches >= 1 && batches <= plan.accumulate,
               "set_accumulate: " + std::to_string(batches) + " is not from 1 to the plan's " +
                   std::to_string(plan.accumulate));
  WEFT_REQUIRE(batches == accumulate_ || kept_batches_ == 0,
               "set_accumulate: call it before the first train_step() of a step, since each has "
               "counted as one of " +
                   std::to_string(accumulate_));
  accumulate_ = batches;
}

// All ranks of tp, cp and pp have the loss of their replica.
std::vector<double> Composed::forward_backward(const Tensors& inputs, const Tensors& targets) {
  require_inputs(inputs, "forward_backward");
  const double loss = train(inputs, targets);
  if (plan.micro_shards > 0) return losses_;
  const bool counts =
      mesh.coordinate("tp") == 0 && mesh.coordinate("cp") == 0 && mesh.coordinate("pp") == 0;
  return {counts && samples_ > 0 ? loss * samples_ : 0};
}

bool Composed::is_last_batch() const {
  return !verifying_ && (!replicates() || kept_batches_ + 1 == accumulate_);
}

double Composed::train(const Tensors& inputs, const Tensors& targets) {
  WEFT_REQUIRE(!replicates() || kept_batches_ < accumulate_,
               "train_step: call step() after every " + std::to_string(accumulate_) +
                   " calls, as the plan's `accumulate` says");
  // gather() may have given the caller's modules other memory since the last batch.
  own_modules.attach();
  for (const Stage& stage : stages) {
    for (const auto& follow : stage.follow_modes) follow();
  }
  samples_ = static_cast<double>(inputs[0].size(0));
  const bool by_shards = plan.micro_shards > 0,
             sums = sharding.average == engine::ShardedOptions::Average::kSum;
  // If gradients are summed, losses are weighted by samples beforehand. Ranks of cp have cp times
  // their share of a gradient (ContextParallel::mean).
  all_samples_ = sums ? samples_of_batch() : 0;
  const double share = sums && !by_shards ? samples_ / all_samples_ / mesh.size("cp") : 1;
  const double factor = share * scale() / accumulate_;
  return guarded([&] {
    WEFT_REQUIRE(!scaled_ || !has_gradients(*this),
                 "train_step: it would add to gradients that the last step() has clipped or "
                 "unscaled; call zero_grad() before it");
    shards_ =
        by_shards ? micro_shards(all_samples_, factor) : even_parts(inputs[0].size(0), factor);
    losses_.assign(static_cast<std::size_t>(plan.micro_shards), 0);
    const Cut parts = cut(inputs, targets, shards_);
    const auto begin = Clock::now();
    const auto counted = [this] {
      return times.forward + times.backward + times.communication + times.update;
    };
    const double before = counted();
    stepped_ = false;
    for (Stage& stage : stages) {
      if (stage.sharded) stage.kept.reset(new engine::Sharded::NoSync(stage.sharded->no_sync()));
      if (skips() && kept_batches_ == 0) stage.statistics.begin_step();
      if (by_shards) stage.statistics.begin(plan.micro_batches);
    }
    const double loss = pipeline->train_step(parts.inputs, parts.targets) / factor;
    observe::set_activity(observe::Activity::kCommunication);
    count_tied_once();
    for (Stage& stage : stages) {
      if (stage.sharded) stage.sharded->reshard();
      if (!stage.kept || !is_last_batch()) continue;
      stage.kept.reset();
      stage.sharded->set_samples(samples_);
      stage.sharded->send_gradients();
    }
    ++batches_;
    ++kept_batches_;
    finish_statistics();
    take_engine_times();  // the wait since the last backward is part of the rest
    times.communication += seconds_since(begin) - (counted() - before);
    return loss;
  });
}

// Without micro-shards, the engine copies the first replica's buffers to all.
void Composed::finish_statistics() {
  if (plan.micro_shards == 0) return;
  for (Stage& stage : stages)
    stage.statistics.finish(replicas(), std::min<double>(plan.micro_shards, all_samples_));
}

engine::DataParallelBase::Times Composed::take_engine_times() {
  engine::DataParallelBase::Times all;
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    const auto mine = stage.sharded->take_times();
    all.work += mine.work;
    all.wait += mine.wait;
  }
  return all;
}

double Composed::mean_over_replicas(double loss, double samples) {
  if (replicas().size() == 1) return loss;
  at::Tensor sums = at::tensor({samples > 0 ? loss * samples : 0, samples}, at::kDouble);
  replicas().all_reduce(sums);
  return sums[0].item<double>() / sums[1].item<double>();
}

double Composed::mean_of_micro_shards(double all) {
  at::Tensor sums = at::tensor(losses_, at::kDouble);
  mesh.world().all_reduce(sums);
  return kernels::tree_sum(sums.const_data_ptr<double>(), losses_.size()) / all;
}

// The replica runs as one piece, so that the bits do not depend on its number of micro-batches. The
// other micro-batches are single samples.
Tensors Composed::predict_at_once(const Tensors& inputs) {
  std::vector<Tensors> parts(static_cast<std::size_t>(plan.micro_batches));
  for (const at::Tensor& input : inputs) {
    WEFT_REQUIRE(input.dim() > 0 && input.size(0) > 0,
                 "predict: all inputs need one entry per sample, and at least one sample");
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i].push_back(i == 0 ? input.clone() : input.narrow(0, 0, 1));
  }
  const auto outputs = pipeline->predict(parts);
  return outputs.empty() ? Tensors{} : outputs[0];
}

Tensors Composed::predict(const Tensors& inputs) {
  return guarded([&] {
    const Tensors outputs =
        plan.micro_shards > 0 ? predict_at_once(inputs) : pipeline->predict(inputs);
    return on_device(outputs.empty() || !model.join ? outputs : model.join(outputs, contexts()),
                     at::kCPU);
  });
}

void Composed::verify(const Tensors& inputs, const Tensors& targets, Verifier::Seed seed) {
  WEFT_REQUIRE(kept_batches_ == 0, "verify: call it before the first batch of a step");
  verifier_.begin(inputs, targets, std::move(seed));
}

// Of the gradients of a batch of the replica `shift` places on, with this rank's weights. Leaves no
// gradients and no change of the running statistics.
Checksums Composed::checksums_of(const Tensors& inputs, const Tensors& targets, int shift) {
  const std::int64_t batches = batches_;
  replica_shift_ = shift;
  verifying_ = true;
  train(inputs, targets);
  verifying_ = false;
  replica_shift_ = 0;
  batches_ = batches;
  Checksums all;
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    const Checksums some = stage.check->kept();
    all.insert(all.end(), some.begin(), some.end());
    stage.kept.reset();
  }
  zero_grad();
  for (Stage& stage : stages) stage.statistics.undo_step();
  return all;
}

}  // namespace weft::parallel::internal
