#include "weft/parallel/compose/parallelize.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "weft/optim/update_rule.h"
#include "weft/parallel/compose/internal/composed.h"
#include "weft/parallel/experts/mixture.h"

namespace weft::parallel {

ParallelModel::ParallelModel(std::unique_ptr<internal::Composed> composed)
    : composed_(std::move(composed)) {}
ParallelModel::~ParallelModel() = default;
ParallelModel::ParallelModel(ParallelModel&&) noexcept = default;

double ParallelModel::train_step(const Tensors& inputs, const Tensors& targets) {
  return composed_->batches.train_step(inputs, targets);
}
std::vector<double> ParallelModel::forward_backward(const Tensors& inputs, const Tensors& targets) {
  return composed_->batches.forward_backward(inputs, targets);
}
double ParallelModel::evaluate(const Tensors& inputs, const Tensors& targets) {
  return composed_->batches.evaluate(inputs, targets);
}
Tensors ParallelModel::predict(const Tensors& inputs) { return composed_->batches.predict(inputs); }
bool ParallelModel::step() { return composed_->optimizer.step(); }
void ParallelModel::verify(const Tensors& inputs, const Tensors& targets,
                           const std::function<void(int replica)>& seed) {
  if (composed_->batches.accumulate() > 1) {
    throw Error(Errc::kBadConfig,
                "verify: a step of several batches is not supported; call set_accumulate(1) for "
                "this step");
  }
  WEFT_REQUIRE(composed_->batches.kept() == 0, "verify: call it before the first batch of a step");
  composed_->verifier.begin(inputs, targets, seed);
}
const std::vector<ParallelModel::WrongGradient>& ParallelModel::wrong_gradients() const {
  return composed_->verifier.wrong();
}
const std::map<int, std::string>& ParallelModel::not_finite() const {
  return composed_->optimizer.not_finite();
}
void ParallelModel::abort(const Error& why) { composed_->abort(why); }
void ParallelModel::zero_grad() { composed_->batches.zero_grad(); }
void ParallelModel::wait_for_weights() { composed_->wait_for_weights(); }
void ParallelModel::set_accumulate(int batches) { composed_->batches.set_accumulate(batches); }
std::optional<ParallelModel::GradientNoise> ParallelModel::gradient_noise() const {
  return composed_->optimizer.gradient_noise();
}
double ParallelModel::grad_norm() { return composed_->optimizer.grad_norm(); }
int ParallelModel::replica() const { return composed_->replica(); }
int ParallelModel::replicas() const { return composed_->replicas().size(); }
double ParallelModel::lr() const { return optim::lr_of(composed_->rule); }

void ParallelModel::set_lr(double lr) {
  optim::set_lr(composed_->rule, lr);
  for (auto& stage : composed_->stages) {
    if (stage.sharded) stage.sharded->set_lr(lr);
  }
}

std::int64_t ParallelModel::steps() const { return composed_->steps; }
double ParallelModel::loss_scale() const { return composed_->scale(); }
ParallelModel::NamedTensors ParallelModel::state() { return composed_->state.state(); }
void ParallelModel::load_state(const NamedTensors& state) { composed_->state.load_state(state); }
std::vector<int> ParallelModel::cuts_of(const Mesh& mesh, const checkpoint::Reader& saved) {
  return internal::saved_cuts(mesh, saved);
}
bool ParallelModel::load_codec(const checkpoint::Reader& saved) {
  return composed_->state.load_codec(saved);
}
ParallelModel::Held ParallelModel::held() { return composed_->state.held(); }

void ParallelModel::take_changes() { composed_->state.take_changes(); }
void ParallelModel::check_changes() { composed_->state.check_changes(); }

checkpoint::Parts ParallelModel::shards() { return composed_->state.shards(); }
void ParallelModel::load_shards(const checkpoint::SliceSource& source) {
  composed_->state.load_shards(source);
}
void ParallelModel::load_weights(const checkpoint::SliceSource& source) {
  composed_->state.load_weights(source);
}
std::vector<ParallelModel::Difference> ParallelModel::compare_replicas() {
  return internal::compare_replicas(*composed_, composed_->state);
}
void ParallelModel::gather() { composed_->state.gather(); }
std::int64_t ParallelModel::gather_bytes() const { return composed_->own_modules.missing_bytes(); }
void ParallelModel::refuse(const std::string& advice) { composed_->own_modules.refuse(advice); }
ParallelModel::NamedTensors ParallelModel::gradients() {
  const double scale = composed_->batches.is_stepped() ? 1 : composed_->scale();
  return composed_->state.gradients(scale);
}

std::int64_t ParallelModel::num_parameters() {
  std::int64_t mine = 0;
  for (const auto& stage : composed_->stages) {
    for (const auto& parameter : stage.parameters) {
      if (!parameter.copy) mine += c10::multiply_integers(parameter.sizes);
    }
  }
  at::Tensor sum = at::full({1}, mine, at::kLong);
  composed_->mesh["pp"].all_reduce(sum);
  return sum.item<std::int64_t>();
}

ParallelModel::Memory ParallelModel::memory() {
  Memory all;
  for (auto& stage : composed_->stages) {
    if (!stage.sharded) continue;
    const auto mine = stage.sharded->memory();
    all.parameters += mine.parameters;
    all.gradients += mine.gradients;
    all.state += mine.state;
  }
  return all;
}

ParallelModel::Times ParallelModel::take_times() { return composed_->times.take(); }

std::map<std::string, ExpertLoad> ParallelModel::take_expert_loads() {
  std::map<std::string, ExpertLoad> all;
  for (const auto& stage : composed_->stages) {
    for (std::size_t i = 0; i < stage.blocks.size(); ++i) {
      for (auto& [layer, load] : parallel::take_expert_loads(*stage.blocks[i].module))
        all[stage.names[i] + (layer.empty() ? "" : "." + layer)] = std::move(load);
    }
  }
  return all;
}

std::string ParallelModel::describe() const {
  std::string text;
  for (const auto& [pass, line] : composed_->passes) {
    if (!line.empty()) text += pass + ": " + line + "\n";
  }
  return text;
}

ParallelModel parallelize(const BlockModel& model, const Plan& plan, const Mesh& mesh) {
  return ParallelModel(std::make_unique<internal::Composed>(model, plan, mesh));
}

}  // namespace weft::parallel
