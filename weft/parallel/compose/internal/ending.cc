// The end of a training step: the norm of the gradients, whether they are finite, the update.
//
// Order of step():
//   gradients of batches that did not fill `accumulate` leave no_sync()
//   await_gradients()   not for whole stages, whose engines combine gradients in their own step()
//   all_finite()        the engines know it of their groups; else one maximum over the world
//   norm_of_gradients() one sum over the world
//   verifier_.agree()   if a batch was recomputed by another replica
//   skip_step(), or step() of each stage's engine with one factor for all
//
// All ranks must take the same branch. So every condition is either a setting that all ranks have
// alike, or the result of a collective whose bits are alike on all ranks.
//
// The factor joins 1 / loss scale and clipping. Engines apply it while they update, and grad()
// keeps the gradients as they were.
#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <sstream>

#include "weft/base/deadline.h"
#include "weft/comm/texts.h"
#include "weft/engine/squares.h"
#include "weft/optim/learning_rate.h"
#include "weft/parallel/compose/internal/composed.h"

namespace weft::parallel::internal {
namespace {

// Adds its lifetime to a time, in seconds.
class TimeAdded {
 public:
  explicit TimeAdded(double& to) : to_(to) {}
  ~TimeAdded() { to_ += seconds_since(begin_); }
  TimeAdded(const TimeAdded&) = delete;
  TimeAdded& operator=(const TimeAdded&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& to_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace

// True on one of the ranks that have the same part of a parameter in a replica.
bool Composed::counts(const Parameter& p) const {
  return !p.copy && (p.slice || tp.rank() == 0) && (p.expert || is_first_of_ep());
}

// One sum over the world, so that all ranks have the same bits: this rank's shards of one replica,
// or its part of what all replicas have.
double Composed::norm_of_gradients() {
  // Replicas of a whole model in one stage get the norm while summing, without another pass.
  const bool alone = replicates() && copies().size() == mesh.world().size() && stages.size() == 1 &&
                     plan.micro_shards == 0;
  if (alone && stages[0].sharded) return stages[0].sharded->grad_norm() / scale();
  std::vector<at::Tensor> pieces;
  double squares = 0;
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    stage.sharded->each_gradient([&](const std::string& own, const at::Tensor& piece) {
      if ((!replicates() && !is_first_copy()) || !counts(*stage.find(own))) return;
      if (plan.micro_shards > 0) {
        pieces.push_back(piece.clone());
      } else {
        squares += engine::squares_of(piece);
      }
    });
  }
  if (plan.micro_shards > 0) return std::sqrt(squares_in_any_order(mesh.world(), pieces)) / scale();
  at::Tensor sum = at::full({1}, squares, at::kDouble);
  mesh.world().all_reduce(sum);
  return std::sqrt(sum.item<double>()) / scale();
}

// Before the engines drop the squares. Gradients of a sum were weighted by the replica's share. Of
// several batches, engines of whole stages see the mean gradient, and others each batch's part of
// it.
std::optional<ParallelModel::GradientNoise> Composed::measure_noise() const {
  if (!plan.measure_noise || replicas().size() == 1) return std::nullopt;
  double squares = 0;
  for (const Stage& stage : stages) {
    if (!stage.sharded) continue;
    const auto& of_stage = stage.check->squares();
    for (std::size_t i = 0; i < of_stage.size(); ++i) {
      if (counts(*stage.find(stage.check->names()[i]))) squares += of_stage[i];
    }
  }
  const bool sums = sharding.average == engine::ShardedOptions::Average::kSum;
  const double factor = scale() * (sums ? samples_ / all_samples_ : 1);
  const bool first = mesh.coordinate("tp") == 0 && mesh.coordinate("pp") == 0;
  const double all = replicas().size(), batches = kept_batches_;
  return ParallelModel::GradientNoise{
      .squares = squares / (factor * factor) / all * (replicates() ? 1 : batches),
      .inverse_samples = first ? 1 / samples_ / all / (replicates() ? batches : 1) : 0};
}

double Composed::grad_norm() {
  if (stepped_ && norm_ >= 0) return norm_;
  WEFT_REQUIRE(!stepped_,
               "grad_norm: call it before step(), or set clipping or loss scaling in the plan");
  return guarded([&] { return norm_of_gradients(); });
}

void Composed::await_gradients() {
  const TimeAdded time(times.communication);
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->await_gradients();
  }
}

// The engines know the gradients of their groups, or those of this rank alone. Only in the latter
// case, and with several groups, this costs a message.
bool Composed::all_finite() {
  bool finite = true, of_world = same_blocks().size() == mesh.world().size();
  own_not_finite_.clear();
  for (Stage& stage : stages) {
    if (!stage.sharded) continue;
    const engine::Sharded::Finite finite_here = stage.sharded->are_finite();
    finite = finite && finite_here.is;
    of_world = of_world && finite_here.on_all;
    if (const std::string own = stage.check->first_name(); own_not_finite_.empty() && !own.empty())
      own_not_finite_ = stage.find(own)->whole;
  }
  times.communication += take_engine_times().wait;
  return of_world || mesh.world().size() == 1 ? finite : tell_ranks(finite);
}

// True if all ranks have finite gradients. Throws Error(kInvalidArgument) if their learning rates
// differ, or if a rank has loaded a tensor that the ranks of its stage have not. Collective.
bool Composed::tell_ranks(bool finite) {
  const TimeAdded time(times.communication);
  constexpr double kNotFinite = 1, kLoaded = 2;  // the greater one hides the other
  const double rate = optim::lr_of(rule), not_finite_here = finite ? 0 : kNotFinite,
               about = own_modules.has_loaded_elsewhere() ? kLoaded : not_finite_here;
  at::Tensor most = at::tensor({about, rate, -rate}, at::kDouble);
  mesh.world().all_reduce(most, ReduceOp::kMax);
  const auto* const numbers = most.const_data_ptr<double>();
  if (!optim::are_equal_rates(numbers[1], -numbers[2])) {
    std::ostringstream text;
    text << "the learning rate is " << -numbers[2] << " on one rank and " << numbers[1]
         << " on another; call set_lr() alike on all ranks";
    throw Error(Errc::kInvalidArgument, text.str());
  }
  if (numbers[0] != kLoaded) return numbers[0] == 0;
  own_modules.check_loads(mesh.world());
  at::Tensor any = at::full({1}, not_finite_here, at::kDouble);
  mesh.world().all_reduce(any, ReduceOp::kMax);
  return any.item<double>() == 0;
}

// As if the batch had not been.
void Composed::skip_step() {
  if (!scaler) {
    const auto names = comm::all_gather_texts(mesh.world(), own_not_finite_);
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      if (!names[rank].empty()) not_finite.emplace(static_cast<int>(rank), names[rank]);
    }
  }
  zero_grad();
  norm_ = -1;
  batches_ = 0;
  for (Stage& stage : stages) {
    if (skips()) stage.statistics.undo_step();
  }
}

bool Composed::step() {
  own_modules.attach();  // gather() may have been called since train_step()
  return guarded([&] {
    for (Stage& stage : stages) {
      if (!std::exchange(stage.kept, nullptr)) continue;
      stage.sharded->set_samples(samples_);  // there may be fewer batches than the plan accumulates
    }
    if (!replicates()) await_gradients();
    double factor = 1 / scale();
    norm_ = -1;
    // With several groups, learning rates are compared in each step. all_finite() does it by its
    // own message.
    if (!skips() && same_blocks().size() != mesh.world().size()) tell_ranks(true);
    bool finite = !skips() || all_finite();
    noise = measure_noise();
    if (finite && (max_norm > 0 || scaler || noise)) {
      norm_ = norm_of_gradients();
      finite = std::isfinite(norm_);
      if (max_norm > 0) factor *= optim::clip_factor(norm_, max_norm);
    }
    const bool agree = verifier_.agree();
    if (scaler) scaler->update(finite);
    not_finite.clear();
    if ((!finite && (scaler || skips())) || !agree) {
      skip_step();
      if (!agree) verifier_.find_wrong();
      verifier_.end();
      return false;
    }
    verifier_.end();
    times.communication += take_engine_times().wait;
    {
      const TimeAdded time(times.update);
      for (Stage& stage : stages) {
        if (stage.sharded) stage.sharded->step(factor);
      }
    }
    const double waited = take_engine_times().wait;
    times.communication += waited;
    times.update -= waited;
    stepped_ = true;
    // Several replicas never add to used gradients (SpentGradients).
    scaled_ = factor != 1 && (scaler || (replicates() && copies().size() == 1));
    batches_ = kept_batches_ = 0;
    ++steps;
    own_modules.forget();
    return true;
  });
}

ParallelModel::NamedTensors Composed::gradients() {
  return state_.gradients(stepped_ ? 1 : scale());
}

void Composed::zero_grad() {
  scaled_ = false;
  kept_batches_ = 0;
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->zero_grad();
  }
}

}  // namespace weft::parallel::internal
