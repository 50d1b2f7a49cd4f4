// The end of a training step: the norm of the gradients, whether they are finite, the update.
//
// Order of step():
//   gradients of batches that did not fill `accumulate` leave no_sync()
//   await_gradients()   not for whole stages, whose engines combine gradients in their own step()
//   all_finite()        the engines know it of their groups; else one maximum over the world
//   norm_of_gradients() one sum over the world
//   verifier_.agree()   if a batch was recomputed by another replica
//   skip(), or step() of each stage's engine with one factor for all
//
// All ranks must take the same branch. So every condition is either a setting that all ranks have
// alike, or the result of a collective whose bits are alike on all ranks.
//
// The factor joins 1 / loss scale and clipping. Engines apply it while they update, and grad()
// keeps the gradients as they were.
#include "weft/parallel/compose/internal/optimizer_step.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>

#include "weft/comm/texts.h"
#include "weft/engine/squares.h"
#include "weft/optim/learning_rate.h"

namespace weft::parallel::internal {

// True on one of the ranks that have the same part of a parameter in a replica.
bool OptimizerStep::counts(const Parameter& p) const {
  return !p.copy && (p.slice || c_.is_first_of_tp()) && (p.expert || c_.is_first_of_ep());
}

// One sum over the world, so that all ranks have the same bits: this rank's shards of one replica,
// or its part of what all replicas have.
double OptimizerStep::norm_of_gradients() {
  // Replicas of a whole model in one stage get the norm while summing, without another pass.
  const bool alone = c_.replicates() && c_.copies().size() == c_.mesh.world().size() &&
                     c_.stages.size() == 1 && c_.plan.micro_shards == 0;
  if (alone && c_.stages[0].sharded) return c_.stages[0].sharded->grad_norm() / c_.scale();
  std::vector<at::Tensor> pieces;
  double squares = 0;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    stage.sharded->each_gradient([&](const std::string& own, const at::Tensor& piece) {
      if ((!c_.replicates() && !c_.is_first_copy()) || !counts(*stage.find(own))) return;
      if (c_.plan.micro_shards > 0) {
        pieces.push_back(piece.clone());
      } else {
        squares += engine::squares_of(piece);
      }
    });
  }
  if (c_.plan.micro_shards > 0)
    return std::sqrt(squares_in_any_order(c_.mesh.world(), pieces)) / c_.scale();
  at::Tensor sum = at::full({1}, squares, at::kDouble);
  c_.mesh.world().all_reduce(sum);
  return std::sqrt(sum.item<double>()) / c_.scale();
}

// Before the engines drop the squares. Gradients of a sum were weighted by the replica's share. Of
// several batches, engines of whole stages see the mean gradient, and others each batch's part of
// it.
std::optional<ParallelModel::GradientNoise> OptimizerStep::measure_noise() const {
  if (!c_.plan.measure_noise || c_.replicas().size() == 1) return std::nullopt;
  double squares = 0;
  for (const Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    const auto& of_stage = stage.check->squares();
    for (std::size_t i = 0; i < of_stage.size(); ++i) {
      if (counts(*stage.find(stage.check->names()[i]))) squares += of_stage[i];
    }
  }
  const double factor = c_.scale() * batches_.share();
  const bool first = c_.mesh.coordinate("tp") == 0 && c_.mesh.coordinate("pp") == 0;
  const double all = c_.replicas().size(), batches = batches_.kept();
  return ParallelModel::GradientNoise{
      .squares = squares / (factor * factor) / all * (c_.replicates() ? 1 : batches),
      .inverse_samples =
          first ? 1 / batches_.samples() / all / (c_.replicates() ? batches : 1) : 0};
}

double OptimizerStep::grad_norm() {
  const bool is_stepped = batches_.is_stepped();
  if (is_stepped && norm_ >= 0) return norm_;
  WEFT_REQUIRE(!is_stepped,
               "grad_norm: call it before step(), or set clipping or loss scaling in the plan");
  return c_.guarded([&] { return norm_of_gradients(); });
}

void OptimizerStep::await_gradients() {
  const auto time = times_.communication();
  for (Stage& stage : c_.stages) {
    if (stage.sharded) stage.sharded->await_gradients();
  }
}

// The engines know the gradients of their groups, or those of this rank alone. Only in the latter
// case, and with several groups, this costs a message.
bool OptimizerStep::all_finite() {
  bool finite = true, of_world = c_.same_blocks().size() == c_.mesh.world().size();
  own_not_finite_.clear();
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    const engine::Sharded::Finite finite_here = stage.sharded->are_finite();
    finite = finite && finite_here.is;
    of_world = of_world && finite_here.on_all;
    if (const std::string own = stage.check->first_name(); own_not_finite_.empty() && !own.empty())
      own_not_finite_ = stage.find(own)->whole;
  }
  times_.count_waits();
  return of_world || c_.mesh.world().size() == 1 ? finite : tell_ranks(finite);
}

// True if all ranks have finite gradients. Throws Error(kInvalidArgument) if their learning rates
// differ, or if a rank has loaded a tensor that the ranks of its stage have not. Collective.
bool OptimizerStep::tell_ranks(bool finite) {
  const auto time = times_.communication();
  constexpr double kNotFinite = 1, kLoaded = 2;  // the greater one hides the other
  const double rate = optim::lr_of(c_.rule), not_finite_here = finite ? 0 : kNotFinite,
               about = c_.own_modules.has_loaded_elsewhere() ? kLoaded : not_finite_here;
  at::Tensor most = at::tensor({about, rate, -rate}, at::kDouble);
  c_.mesh.world().all_reduce(most, ReduceOp::kMax);
  const auto* const numbers = most.const_data_ptr<double>();
  if (!optim::are_equal_rates(numbers[1], -numbers[2])) {
    std::ostringstream text;
    text << "the learning rate is " << -numbers[2] << " on one rank and " << numbers[1]
         << " on another; call set_lr() alike on all ranks";
    throw Error(Errc::kInvalidArgument, text.str());
  }
  if (numbers[0] != kLoaded) return numbers[0] == 0;
  c_.own_modules.check_loads(c_.mesh.world());
  at::Tensor any = at::full({1}, not_finite_here, at::kDouble);
  c_.mesh.world().all_reduce(any, ReduceOp::kMax);
  return any.item<double>() == 0;
}

void OptimizerStep::skip() {
  if (!c_.scaler) {
    const auto names = comm::all_gather_texts(c_.mesh.world(), own_not_finite_);
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      if (!names[rank].empty()) not_finite_.emplace(static_cast<int>(rank), names[rank]);
    }
  }
  norm_ = -1;
  batches_.undo_step();
}

bool OptimizerStep::step() {
  c_.own_modules.attach();  // gather() may have been called since train_step()
  return c_.guarded([&] {
    batches_.release_gradients();
    if (!c_.replicates()) await_gradients();
    const double max_norm = c_.max_norm();
    double factor = 1 / c_.scale();
    norm_ = -1;
    // With several groups, learning rates are compared in each step. all_finite() does it by its
    // own message.
    if (!c_.skips() && c_.same_blocks().size() != c_.mesh.world().size()) tell_ranks(true);
    bool finite = !c_.skips() || all_finite();
    noise_ = measure_noise();
    if (finite && (max_norm > 0 || c_.scaler || noise_)) {
      norm_ = norm_of_gradients();
      finite = std::isfinite(norm_);
      if (max_norm > 0) factor *= optim::clip_factor(norm_, max_norm);
    }
    const bool agree = verifier_.agree();
    if (c_.scaler) c_.scaler->update(finite);
    not_finite_.clear();
    if ((!finite && (c_.scaler || c_.skips())) || !agree) {
      skip();
      if (!agree) verifier_.find_wrong();
      verifier_.end();
      return false;
    }
    verifier_.end();
    times_.update([&] {
      for (Stage& stage : c_.stages) {
        if (stage.sharded) stage.sharded->step(factor);
      }
    });
    // Several replicas never add to used gradients (SpentGradients).
    const bool may_add = c_.scaler || (c_.replicates() && c_.copies().size() == 1);
    batches_.end_step(/*is_scaled=*/factor != 1 && may_add);
    ++c_.steps;
    c_.own_modules.forget();
    return true;
  });
}

}  // namespace weft::parallel::internal
