// Forward and backward of a sharded model.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "weft/engine/internal/sharded_model.h"

namespace weft::engine {

using Direction = internal::Passes::Direction;

Tensors ShardedModel::run(std::size_t block, const Tensors& given) {
  return guarded([&] {
    if (!passes_) return Engine::run(block, given);
    const bool learns = at::GradMode::is_enabled();
    const auto run = std::make_shared<Run>();
    run->block = static_cast<int>(block);
    if (learns) {
      forward_pending_ = true;
      hook_inputs(run, given);
    }
    passes_->enter(run->block, Direction::kForward);
    Tensors outputs = Engine::run(block, given);
    for (const int unit : passes_->units_of(run->block)) passes_->release(unit);
    if (learns) hook_outputs(run, outputs);
    return outputs;
  });
}

// Runs before the forward, which may change its inputs in place. The gradient of a non-leaf input
// is complete only after all nodes of the block that lead to it. The block's other nodes were made
// later than the input, so autograd runs them first. Gradients of leaf inputs have no such order.
void ShardedModel::hook_inputs(const RunPtr& run, const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (!input.requires_grad() || input.is_leaf()) continue;
    ++run->inputs;
    input.register_hook([weak = std::weak_ptr(self()), run](const at::Tensor&) {
      if (const auto model = weak.lock()) model->input_done(run);
    });
  }
}

void ShardedModel::hook_outputs(const RunPtr& run, const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = std::weak_ptr(self()), run](const at::Tensor&) {
      if (const auto model = weak.lock()) model->open(run);
    });
  }
}

void ShardedModel::begin_backward() {
  if (in_backward_) return;
  in_backward_ = true;
  stepped_ = false;
  watch().check(true);
  if (travels()) reducer_->settle();
  left_ = false;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = self()] { self->end_backward(); });
}

void ShardedModel::open(const RunPtr& run) {
  if (!run->held.empty()) return;
  guarded([&] {
    begin_backward();
    passes_->enter(run->block, Direction::kBackward);
    const auto& units = passes_->units_of(run->block);
    run->held.insert(units.begin(), units.end());
    run->inputs_left = run->inputs;
    open_.push_back(run);
  });
}

void ShardedModel::input_done(const RunPtr& run) {
  if (run->held.empty() || --run->inputs_left > 0) return;
  guarded([&] {
    for (const int unit : std::exchange(run->held, {})) passes_->release(unit);
    open_.remove(run);
  });
}

void ShardedModel::close_unit(int unit) {
  for (auto run = open_.begin(); run != open_.end();) {
    if ((*run)->held.erase(unit) > 0) passes_->release(unit);
    run = (*run)->held.empty() ? open_.erase(run) : std::next(run);
  }
}

void ShardedModel::on_ready(int param) {
  guarded([&] {
    samples_->in_backward();
    begin_backward();
    if (!travels() && paused_ == 0) watch().shown(param);
    const int complete = reducer_->ready(param, travels());
    if (complete >= 0 && passes_) close_unit(complete);
  });
}

void ShardedModel::end_backward() {
  guarded([&] {
    in_backward_ = false;
    for (const RunPtr& run : std::exchange(open_, {})) {
      for (const int unit : std::exchange(run->held, {})) passes_->release(unit);
    }
    if (passes_) passes_->finish(Direction::kBackward);
    forward_pending_ = false;
    reducer_->finish(travels());
    if (travels()) {
      left_ = true;
      samples_->reset();
    }
    hide_gradients();
  });
}

void ShardedModel::empty_passes(bool forward) {
  if (passes_) {
    if (forward) passes_->finish(Direction::kForward, true);
    passes_->finish(Direction::kBackward, true);
  }
  forward_pending_ = false;
}

void ShardedModel::skip_batch() {
  guarded([&] {
    stepped_ = false;
    show_gradients();
    if (travels()) reducer_->settle();
    empty_passes(true);
    if (!travels()) return;
    reducer_->finish(true);
    left_ = true;
    samples_->reset();
    hide_gradients();
  });
}

void ShardedModel::unshard() {
  if (!passes_ || !kept_.empty()) return;
  guarded([&] {
    for (int block = static_cast<int>(blocks_.size()) - 1; block >= 0; --block) {
      passes_->enter(block, Direction::kBackward);
      const auto& units = passes_->units_of(block);
      kept_.insert(kept_.end(), units.begin(), units.end());
    }
    passes_->finish(Direction::kBackward);
  });
}

void ShardedModel::reshard() {
  guarded([&] {
    for (const int unit : std::exchange(kept_, {})) passes_->release(unit);
  });
}

void ShardedModel::end_pass() {
  if (passes_) guarded([&] { passes_->finish(Direction::kForward); });
}

}  // namespace weft::engine
