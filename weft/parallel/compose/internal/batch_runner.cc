// A training step up to its gradients. optimizer_step.cc has the rest of the step.
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
#include "weft/parallel/compose/internal/batch_runner.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "weft/kernels/tree_sum.h"
#include "weft/observe/position/position.h"
#include "weft/parallel/compose/internal/on_device.h"

namespace weft::parallel::internal {

using schedule::pipeline::Work;

namespace {

// Upper bound on the dropout masks of a block in one micro-batch.
constexpr std::uint64_t kMasks = std::uint64_t{1} << 20;

// Shards of gradients are not in grad().
bool has_gradients(const Composition& c) {
  if (!c.replicates()) return true;
  for (const Stage& stage : c.stages) {
    for (const Block& block : stage.blocks) {
      for (const at::Tensor& parameter : block.module->parameters()) {
        if (parameter.grad().defined()) return true;
      }
    }
  }
  return false;
}

}  // namespace

PipelineCalls BatchRunner::calls() {
  return {
      .loss = [this](const Tensors& y, const Tensors& t) { return micro_batches_.loss_of(y, t); },
      .before = [this](const schedule::pipeline::Action& action) { begin_action(action); },
      .after = [this](const schedule::pipeline::Action& action) { end_action(action); }};
}

// Of all replicas.
double BatchRunner::samples_of_batch() const {
  at::Tensor all = at::full({1}, samples_, at::kDouble);
  c_.guarded([&] { c_.replicas().all_reduce(all); });
  WEFT_REQUIRE(all.item<double>() > 0, "train_step: no rank has a sample");
  return all.item<double>();
}

// Gradients are sent during the last backward of a stage, unless an option forbids it.
void BatchRunner::begin_action(const schedule::pipeline::Action& action) {
  times_.begin_action(action);
  micro_batches_.begin(action.micro_batch);
  for (Stage& stage : c_.stages) {
    // Ends the unshard() of an earlier backward-weight.
    if (stage.sharded) stage.sharded->reshard();
    // Some of libtorch's operations (layer_norm) read the weight to compute the weight's gradient.
    if (stage.sharded && stage.number == action.stage && action.work == Work::kBackwardWeight)
      stage.sharded->unshard();
    if (stage.number != action.stage) continue;
    stage.made_up.reset();  // of an error
    const bool forward = action.work == Work::kForward;
    if (micro_batches_.is_made_up(action.micro_batch))
      stage.made_up = std::make_unique<MadeUp>(stage.blocks, forward);
    if (!forward) continue;
    seed_dropout(stage, action.micro_batch);
    if (c_.plan.micro_shards > 0 && !stage.statistics.empty()) stage.statistics.restore();
  }
  const bool makes_gradients =
      action.work == Work::kBackward || action.work == Work::kBackwardWeight;
  // Under every schedule, the backwards of a stage come by rising micro-batch, so this is its last
  // one.
  if (!makes_gradients || action.micro_batch + 1 != c_.plan.micro_batches) return;
  for (Stage& stage : c_.stages) {
    if (stage.number != action.stage || stage.tied || stage.tree || !stage.sharded ||
        c_.sharding.stage == 1 || !is_last_batch())
      continue;
    stage.sharded->set_samples(samples_);
    stage.kept.reset();
  }
}

void BatchRunner::end_action(const schedule::pipeline::Action& action) {
  times_.end_action(action);
  for (Stage& stage : c_.stages) {
    if (stage.number != action.stage) continue;
    stage.made_up.reset();
    if (c_.plan.micro_shards > 0 && action.work == Work::kForward && !stage.statistics.empty())
      stage.statistics.take(action.micro_batch, !micro_batches_.is_made_up(action.micro_batch));
  }
  if (action.work != Work::kBackward && action.work != Work::kBackwardWeight) return;
  for (Stage& stage : c_.stages) {
    if (stage.number != action.stage || !stage.tree || !stage.tree->take(action.micro_batch))
      continue;
    // Sums over the replicas before the stages, in the order of one process.
    for (const at::Tensor& tied : stage.tied_weights()) {
      if (tied.grad().defined() && c_.replicas().size() > 1)
        c_.replicas().all_reduce(tied.mutable_grad());
    }
  }
}

// With micro-shards, all replicas have the whole sum, so it counts once.
void BatchRunner::count_tied_once() {
  for (Stage& stage : c_.stages) {
    if (!stage.tree || c_.replica() == 0) continue;
    for (const at::Tensor& tied : stage.tied_weights()) tied.mutable_grad() = at::Tensor();
  }
}

// The draw depends on the batch and on the micro-batch among those of all replicas, so that a
// resumed run has the same dropout as an uninterrupted one.
void BatchRunner::seed_dropout(const Stage& stage, int micro_batch) const {
  const std::int64_t batch = c_.steps * c_.plan.accumulate + batches_,
                     first = (batch * c_.replicas().size() +
                              (c_.replica() + replica_shift_) % c_.replicas().size()) *
                             c_.plan.micro_batches;
  for (const TensorParallel& of_block : stage.tp)
    of_block.set_draw(static_cast<std::uint64_t>(first + micro_batch) * kMasks);
}

void BatchRunner::require_inputs(const Tensors& inputs, const std::string& operation) const {
  c_.guarded([&] {
    WEFT_REQUIRE(!inputs.empty() && inputs[0].dim() > 0,
                 operation + ": every rank must pass the inputs of its replica");
  });
}

double BatchRunner::train_step(const Tensors& inputs, const Tensors& targets) {
  require_inputs(inputs, "train_step");
  const double loss = train(inputs, targets);
  return c_.guarded([&] {
    const auto time = times_.communication();
    return c_.plan.micro_shards > 0 ? mean_of_micro_shards() : mean_over_replicas(loss, samples_);
  });
}

double BatchRunner::evaluate(const Tensors& inputs, const Tensors& targets) {
  require_inputs(inputs, "evaluate");
  return c_.guarded([&] {
    const std::int64_t samples = inputs[0].size(0);
    MicroBatches parts(c_);
    parts.divide_evenly(samples, 1);
    const MicroBatches::Cut cut = parts.cut(inputs, targets);
    const double loss = c_.pipeline->evaluate(cut.inputs, cut.targets);
    return mean_over_replicas(loss, static_cast<double>(samples));
  });
}

void BatchRunner::set_accumulate(int batches) {
  WEFT_REQUIRE(batches >= 1 && batches <= c_.plan.accumulate,
               "set_accumulate: " + std::to_string(batches) + " is not from 1 to the plan's " +
                   std::to_string(c_.plan.accumulate));
  WEFT_REQUIRE(batches == accumulate_ || kept_batches_ == 0,
               "set_accumulate: call it before the first train_step() of a step, since each has "
               "counted as one of " +
                   std::to_string(accumulate_));
  accumulate_ = batches;
}

// All ranks of tp, cp and pp have the loss of their replica.
std::vector<double> BatchRunner::forward_backward(const Tensors& inputs, const Tensors& targets) {
  require_inputs(inputs, "forward_backward");
  const double loss = train(inputs, targets);
  if (c_.plan.micro_shards > 0) return micro_batches_.losses();
  const Mesh& mesh = c_.mesh;
  const bool counts =
      mesh.coordinate("tp") == 0 && mesh.coordinate("cp") == 0 && mesh.coordinate("pp") == 0;
  return {counts && samples_ > 0 ? loss * samples_ : 0};
}

bool BatchRunner::is_last_batch() const {
  return !verifying_ && (!c_.replicates() || kept_batches_ + 1 == accumulate_);
}

double BatchRunner::train(const Tensors& inputs, const Tensors& targets) {
  WEFT_REQUIRE(!c_.replicates() || kept_batches_ < accumulate_,
               "train_step: call step() after every " + std::to_string(accumulate_) +
                   " calls, as the plan's `accumulate` says");
  // gather() may have given the caller's modules other memory since the last batch.
  c_.own_modules.attach();
  for (const Stage& stage : c_.stages) {
    for (const auto& follow : stage.follow_modes) follow();
  }
  const std::int64_t rows = inputs[0].size(0);
  samples_ = static_cast<double>(rows);
  const bool by_shards = c_.plan.micro_shards > 0,
             sums = c_.sharding.average == engine::ShardedOptions::Average::kSum;
  // If gradients are summed, losses are weighted by samples beforehand. Ranks of cp have cp times
  // their share of a gradient (ContextParallel::mean).
  all_samples_ = sums ? samples_of_batch() : 0;
  const double weight = sums && !by_shards ? share() / c_.mesh.size("cp") : 1;
  const double factor = weight * c_.scale() / accumulate_;
  return c_.guarded([&] {
    WEFT_REQUIRE(!scaled_ || !has_gradients(c_),
                 "train_step: it would add to gradients that the last step() has clipped or "
                 "unscaled; call zero_grad() before it");
    if (by_shards) {
      micro_batches_.divide_into_shards(rows, static_cast<std::int64_t>(all_samples_), factor);
    } else {
      micro_batches_.divide_evenly(rows, factor);
    }
    const MicroBatches::Cut parts = micro_batches_.cut(inputs, targets);
    times_.begin_batch();
    stepped_ = false;
    for (Stage& stage : c_.stages) {
      if (stage.sharded) stage.kept.reset(new engine::Sharded::NoSync(stage.sharded->no_sync()));
      if (c_.skips() && kept_batches_ == 0) stage.statistics.begin_step();
      if (by_shards) stage.statistics.begin(c_.plan.micro_batches);
    }
    const double loss = c_.pipeline->train_step(parts.inputs, parts.targets) / factor;
    observe::set_activity(observe::Activity::kCommunication);
    count_tied_once();
    for (Stage& stage : c_.stages) {
      if (stage.sharded) stage.sharded->reshard();
      if (!stage.kept || !is_last_batch()) continue;
      stage.kept.reset();
      stage.sharded->set_samples(samples_);
      stage.sharded->send_gradients();
    }
    ++batches_;
    ++kept_batches_;
    finish_statistics();
    times_.end_batch();
    return loss;
  });
}

// Without micro-shards, the engine copies the first replica's buffers to all.
void BatchRunner::finish_statistics() {
  if (c_.plan.micro_shards == 0) return;
  for (Stage& stage : c_.stages)
    stage.statistics.finish(c_.replicas(), std::min<double>(c_.plan.micro_shards, all_samples_));
}

double BatchRunner::mean_over_replicas(double loss, double samples) const {
  if (c_.replicas().size() == 1) return loss;
  at::Tensor sums = at::tensor({samples > 0 ? loss * samples : 0, samples}, at::kDouble);
  c_.replicas().all_reduce(sums);
  return sums[0].item<double>() / sums[1].item<double>();
}

double BatchRunner::mean_of_micro_shards() const {
  const std::vector<double>& losses = micro_batches_.losses();
  at::Tensor sums = at::tensor(losses, at::kDouble);
  c_.mesh.world().all_reduce(sums);
  return kernels::tree_sum(sums.const_data_ptr<double>(), losses.size()) / all_samples_;
}

// The replica runs as one piece, so that the bits do not depend on its number of micro-batches. The
// other micro-batches are single samples.
Tensors BatchRunner::predict_at_once(const Tensors& inputs) {
  std::vector<Tensors> parts(static_cast<std::size_t>(c_.plan.micro_batches));
  for (const at::Tensor& input : inputs) {
    WEFT_REQUIRE(input.dim() > 0 && input.size(0) > 0,
                 "predict: all inputs need one entry per sample, and at least one sample");
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i].push_back(i == 0 ? input.clone() : input.narrow(0, 0, 1));
  }
  const auto outputs = c_.pipeline->predict(parts);
  return outputs.empty() ? Tensors{} : outputs[0];
}

Tensors BatchRunner::predict_in_parts(const Tensors& inputs) {
  MicroBatches parts(c_);
  parts.divide_evenly(inputs[0].size(0), 1);
  return parts.join(c_.pipeline->predict(parts.cut(inputs)));
}

Tensors BatchRunner::predict(const Tensors& inputs) {
  require_inputs(inputs, "predict");
  return c_.guarded([&] {
    const Tensors outputs =
        c_.plan.micro_shards > 0 ? predict_at_once(inputs) : predict_in_parts(inputs);
    const auto& join = c_.model.join;
    return on_device(outputs.empty() || !join ? outputs : join(outputs, c_.contexts), at::kCPU);
  });
}

// Of the gradients of a batch of the replica `shift` places on, with this rank's weights. Leaves no
// gradients and no change of the running statistics.
Checksums BatchRunner::checksums_of(const Tensors& inputs, const Tensors& targets, int shift) {
  const std::int64_t batches = batches_;
  replica_shift_ = shift;
  verifying_ = true;
  train(inputs, targets);
  verifying_ = false;
  replica_shift_ = 0;
  batches_ = batches;
  Checksums all;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    const Checksums some = stage.check->kept();
    all.insert(all.end(), some.begin(), some.end());
    stage.kept.reset();
  }
  zero_grad();
  for (Stage& stage : c_.stages) stage.statistics.undo_step();
  return all;
}

void BatchRunner::zero_grad() {
  scaled_ = false;
  kept_batches_ = 0;
  for (Stage& stage : c_.stages) {
    if (stage.sharded) stage.sharded->zero_grad();
  }
}

void BatchRunner::release_gradients() {
  for (Stage& stage : c_.stages) {
    if (!std::exchange(stage.kept, nullptr)) continue;
    stage.sharded->set_samples(samples_);  // there may be fewer batches than the plan accumulates
  }
}

void BatchRunner::end_step(bool is_scaled) {
  stepped_ = true;
  scaled_ = is_scaled;
  batches_ = kept_batches_ = 0;
}

void BatchRunner::undo_step() {
  zero_grad();
  batches_ = 0;
  for (Stage& stage : c_.stages) {
    if (c_.skips()) stage.statistics.undo_step();
  }
}

}  // namespace weft::parallel::internal
