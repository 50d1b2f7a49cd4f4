#include "weft/parallel/compose/internal/composed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "weft/parallel/compose/internal/autocast.h"

// A step. What is saved is in whole.cc.
namespace weft::parallel::internal {

using schedule::pipeline::Work;

const Parameter* Stage::find(const std::string& own) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.own == own; });
  return found == parameters.end() ? nullptr : &*found;
}

Composed::Composed(BlockModel model_, Plan plan_, const Mesh& mesh_)
    : model(std::move(model_)), plan(std::move(plan_)), mesh(mesh_), rule(plan.optimizer.rule) {
  WEFT_REQUIRE(!model.blocks.empty() && model.loss, "parallelize: the model needs a block and a loss");
}

void Composed::abort(const Error& error) const {
  for (const char* axis : {"pp", "tp", "cp", "ep"}) mesh[axis].abort(error);
  replicas().abort(error);
  mesh.world().abort(error);
}

// This rank's, of the samples of all replicas.
double Composed::share_of_batch() {
  at::Tensor all = at::full({1}, samples_, at::kDouble);
  guarded([&] { replicas().all_reduce(all); });
  WEFT_REQUIRE(all.item<double>() > 0, "train_step: no rank gives a sample");
  return samples_ / all.item<double>();
}

// Micro-batches along the first dimension. A pipeline weighs them by their first target's rows, of which it needs one at least: so before
// the targets stands a tensor of that many, and behind them what makes of it `factor` times the micro-batch's part of the true rows.
Composed::Cut Composed::cut(const Tensors& inputs, const Tensors& targets, double factor) const {
  const std::int64_t parts = plan.micro_batches, rows = inputs[0].size(0), all = model.experts > 0 ? rows : std::max(rows, parts);
  Cut cut{std::vector<Tensors>(static_cast<std::size_t>(parts)), std::vector<Tensors>(static_cast<std::size_t>(parts))};
  const auto deal = [&](const Tensors& from, std::vector<Tensors>& to, const char* what) {
    for (const at::Tensor& whole : from) {
      WEFT_REQUIRE(whole.dim() > 0 && whole.size(0) == rows,
                   std::string("train_step: all ") + what + " have one entry a sample along the first dimension, as the first input");
      std::vector<std::int64_t> missing = whole.sizes().vec();
      missing[0] = all - rows;
      const auto pieces = at::tensor_split(all > rows ? at::cat({whole, at::zeros(missing, whole.options())}) : whole, parts, 0);
      for (std::size_t i = 0; i < to.size(); ++i) to[i].push_back(pieces[i]);
    }
  };
  deal(inputs, cut.inputs, "inputs");
  if (!pipeline->has_last_stage()) return cut;
  WEFT_REQUIRE(!targets.empty(), "train_step: this rank reads the targets, and there are none");
  deal(targets, cut.targets, "targets");
  const auto counted = static_cast<double>(std::max(rows, parts));
  for (std::int64_t i = 0; i < parts; ++i) {
    Tensors& micro_batch = cut.targets[static_cast<std::size_t>(i)];
    const std::int64_t mine = rows / parts + (i < rows % parts ? 1 : 0), standing = std::max<std::int64_t>(1, mine);
    const double right = mine > 0 ? static_cast<double>(mine) / static_cast<double>(rows) : 0;
    micro_batch.insert(micro_batch.begin(), at::zeros({1}).expand({standing}));
    micro_batch.push_back(at::scalar_tensor(factor * (right / (static_cast<double>(standing) / counted)), at::kDouble));
  }
  return cut;
}

at::Tensor Composed::loss_of(const Tensors& outputs, const Tensors& targets) const {
  const Autocast autocast(precision);
  const double weight = targets.back().item<double>();
  const at::Tensor loss = model.loss(outputs, Tensors(targets.begin() + 1, targets.end() - 1), contexts());
  return weight == 1 ? loss : loss * weight;
}

// Gradients leave in the last backward of a stage, where nothing stands against it.
void Composed::before(const schedule::pipeline::Action& action) {
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->let_go();
    // Some of libtorch's operations (layer_norm) read the weight for the weight's own gradient too.
    if (stage.sharded && stage.number == action.stage && action.work == Work::kBackwardWeight) stage.sharded->hold();
  }
  const bool makes_gradients = action.work == Work::kBackward || action.work == Work::kBackwardWeight;
  if (!makes_gradients || action.micro_batch + 1 != plan.micro_batches) return;
  for (Stage& stage : stages) {
    if (stage.number != action.stage || stage.tied || !stage.sharded || sharding.stage == 1) continue;
    stage.sharded->set_samples(samples_);
    stage.kept.reset();
  }
}

double Composed::run(const Tensors& inputs, const Tensors& targets, bool training) {
  WEFT_REQUIRE(!inputs.empty() && inputs[0].dim() > 0, "train_step: every rank gives the inputs of its replica");
  samples_ = static_cast<double>(inputs[0].size(0));
  const double share = training && mesh.size("ep") > 1 ? share_of_batch() : 1;
  const double factor = training ? share * scale() / plan.accumulate : 1;
  const Cut parts = cut(inputs, targets, factor);
  return guarded([&] {
    double loss = 0;
    if (training) {
      stepped_ = false;
      for (Stage& stage : stages) {
        if (stage.sharded) stage.kept.reset(new Sharded::NoSync(stage.sharded->no_sync()));
      }
      loss = pipeline->train_step(parts.inputs, parts.targets) / factor;
      for (Stage& stage : stages) {
        if (stage.sharded) stage.sharded->let_go();
        if (!stage.kept) continue;
        stage.kept.reset();
        stage.sharded->set_samples(samples_);
        stage.sharded->send_gradients();
      }
    } else {
      loss = pipeline->evaluate(parts.inputs, parts.targets);
    }
    if (replicas().size() == 1) return loss;
    at::Tensor sums = at::tensor({samples_ > 0 ? loss * samples_ : 0, samples_}, at::kDouble);
    replicas().all_reduce(sums);
    return sums[0].item<double>() / sums[1].item<double>();
  });
}

Tensors Composed::predict(const Tensors& inputs) {
  return guarded([&] {
    const Tensors outputs = pipeline->predict(inputs);
    return outputs.empty() || !model.join ? outputs : model.join(outputs, contexts());
  });
}

// One number over the world, so that all have the same bits of it: this rank's shards of one replica.
double Composed::norm_of_gradients() {
  double squares = 0;
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    squares += stage.sharded->local_squares([&](const std::string& own) {
      const Parameter* const p = stage.find(own);
      return !p->copy() && (p->slice || tp.rank() == 0) && (p->expert || is_first_of_ep());
    });
  }
  at::Tensor sum = at::full({1}, is_first_copy() ? squares : 0, at::kDouble);
  mesh.world().all_reduce(sum);
  return std::sqrt(sum.item<double>()) / scale();
}

double Composed::grad_norm() {
  if (stepped_ && norm_ >= 0) return norm_;
  WEFT_REQUIRE(!stepped_, "grad_norm: ask before step(), or let the plan clip or scale");
  return guarded([&] { return norm_of_gradients(); });
}

bool Composed::step() {
  return guarded([&] {
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
    stepped_ = true;
    ++steps;
    return true;
  });
}

void Composed::zero_grad() {
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->zero_grad();
  }
}

}  // namespace weft::parallel::internal
