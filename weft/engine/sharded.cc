#include "weft/engine/sharded.h"

#include <torch/nn/module.h>

#include <exception>
#include <set>

#include "weft/engine/internal/replica.h"
#include "weft/engine/internal/sharded_model.h"
#include "weft/engine/parameter_cuts.h"

namespace weft::engine {
namespace {

std::vector<Block> as_one_block(std::shared_ptr<torch::nn::Module> module,
                                const ShardedOptions& options) {
  WEFT_REQUIRE(options.stage < 3,
               "sharded: stage 3 needs a list of blocks instead of a module, since modules have no "
               "forward hooks");
  return {{.module = std::move(module)}};
}

std::function<bool(const std::string&)> among(std::set<std::string> names) {
  return [names = std::move(names)](const std::string& name) { return names.count(name) > 0; };
}

void add_vectors(const torch::nn::Module& module, const std::string& prefix,
                 std::set<std::string>& names) {
  for (const auto& item : module.named_parameters(true)) {
    if (item.value().dim() <= 1) names.insert(prefix + item.key());
  }
}

// The engine of stages 1 to 3; null at stage 0.
ShardedModel* divided(const std::shared_ptr<Engine>& model) {
  return dynamic_cast<ShardedModel*>(model.get());
}

// The engine of stage 0; null at the others.
Replica* replica(const std::shared_ptr<Engine>& model) {
  return dynamic_cast<Replica*>(model.get());
}

}  // namespace

Sharded::Sharded(std::vector<Block> blocks, Group group, OptimizerSpec optimizer,
                 ShardedOptions options)
    : model_(make_engine({std::move(blocks), std::move(group), std::move(options)},
                         std::move(optimizer))) {}

Sharded::Sharded(std::shared_ptr<torch::nn::Module> module, Group group, OptimizerSpec optimizer,
                 ShardedOptions options)
    : Sharded(as_one_block(std::move(module), options), std::move(group), std::move(optimizer),
              options) {}

Sharded Sharded::make(const std::vector<std::function<Block()>>& blocks, Group group,
                      OptimizerSpec optimizer, ShardedOptions options) {
  options.cuts = std::make_shared<ParameterCuts>(group);
  std::vector<Block> made;
  for (const auto& make_block : blocks) {
    made.push_back(make_block());
    if (options.stage > 0) options.cuts->cut(*made.back().module);
  }
  return {std::move(made), std::move(group), std::move(optimizer), std::move(options)};
}

// If a rank ended by an exception without this, its peers would wait.
Sharded::~Sharded() {
  if (model_ && std::uncaught_exceptions() > 0) model_->abandon();
}

Sharded::Sharded(Sharded&&) noexcept = default;

at::Tensor Sharded::forward(const at::Tensor& input) { return model_->forward(input); }
Tensors Sharded::run(std::size_t block, const Tensors& inputs) {
  return model_->run(block, inputs);
}
void Sharded::set_samples(double samples) { model_->samples().set(samples); }
void Sharded::skip_batch() { model_->skip_batch(); }
void Sharded::end_pass() {
  if (auto* const units = divided(model_)) units->end_pass();
}
NoSync Sharded::no_sync() { return NoSync(model_); }
void Sharded::send_gradients() { model_->send_gradients(); }
void Sharded::unshard() {
  if (auto* const units = divided(model_)) units->unshard();
}
void Sharded::reshard() {
  if (auto* const units = divided(model_)) units->reshard();
}
void Sharded::step(double scale) { model_->step(scale); }
void Sharded::zero_grad() { model_->zero_grad(); }
double Sharded::grad_norm() { return model_->grad_norm(); }
Sharded::Finite Sharded::are_finite() { return model_->are_finite(); }
void Sharded::await_gradients() { model_->await_gradients(); }
void Sharded::each_gradient(
    const std::function<void(const std::string&, const at::Tensor&)>& take) {
  model_->each_gradient(take);
}
double Sharded::lr() const { return lr_of(model_->updates().spec().rule); }
void Sharded::set_lr(double lr) { optim::set_lr(model_->updates().spec().rule, lr); }
std::int64_t Sharded::steps() const { return model_->steps(); }
Sharded::NamedTensors Sharded::gradients() { return model_->gradients(); }
Sharded::NamedTensors Sharded::state() { return model_->state().whole(); }
void Sharded::load_state(const NamedTensors& state) { model_->state().load(state); }
checkpoint::Slices Sharded::shards(const Placing& placing) {
  return model_->state().shards(placing);
}
checkpoint::Slices Sharded::held(const Placing& placing) { return model_->state().held(placing); }
void Sharded::take_changes() { model_->state().take_changes(); }
void Sharded::check_changes() { model_->state().check_changes(); }
void Sharded::load_shards(const checkpoint::SliceSource& source, const Placing& placing) {
  model_->state().load_shards(source, placing, false);
}
void Sharded::load_weights(const checkpoint::SliceSource& source, const Placing& placing) {
  model_->state().load_shards(source, placing, true);
}
void Sharded::abandon(const std::string& why) noexcept { model_->abandon(why); }
void Sharded::wait_for_weights() { model_->settle(); }
DataParallelBase::Times Sharded::take_times() { return model_->take_times(); }
checkpoint::Slices Sharded::codec_slices() {
  auto* const whole = replica(model_);
  return whole != nullptr ? whole->codec_slices() : checkpoint::Slices{};
}
bool Sharded::load_codec(const checkpoint::Reader& saved) {
  auto* const whole = replica(model_);
  return whole != nullptr && whole->load_codec(saved);
}
std::vector<std::span<float>> Sharded::codec_memory() {
  auto* const units = divided(model_);
  return units != nullptr ? units->codec_memory() : std::vector<std::span<float>>{};
}
std::int64_t Sharded::codec_steps() const {
  const auto* const units = divided(model_);
  return units != nullptr ? units->codec_steps() : 0;
}
void Sharded::set_codec_steps(std::int64_t steps) {
  if (auto* const units = divided(model_)) units->set_codec_steps(steps);
}
Sharded::Memory Sharded::memory() { return model_->memory(); }
std::string Sharded::describe() const { return model_->describe(); }

std::function<bool(const std::string&)> vectors_of(const std::vector<Block>& blocks) {
  std::set<std::string> names;
  for (const auto& block : blocks)
    add_vectors(*block.module, block.name.empty() ? "" : block.name + ".", names);
  return among(std::move(names));
}

std::function<bool(const std::string&)> vectors_of(const torch::nn::Module& module) {
  std::set<std::string> names;
  add_vectors(module, "", names);
  return among(std::move(names));
}

}  // namespace weft::engine
