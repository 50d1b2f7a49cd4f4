// Forward and backward of a sharded model. At stage 3 with private weights, hooks of autograd say
// when a block needs its units. Of three blocks 0, 1, 2:
//
//   forward    gather 0 ─ run 0 ─ release 0 │ gather 1 ─ run 1 ─ release 1 │ gather 2 …
//   backward   output of 2 ─► open: gather 2      (and `prefetch` blocks ahead)
//              parameters of 2 ─► on_ready: gradients leave; a complete unit is released
//              output of 1, which is an input of 2 ─► open: gather 1; the rest of 2 is released
//              …
//              end of the graph ─► end_backward: the rest of gathers and gradients
//
// In all other placements the weights are always there, and only on_ready and end_backward act.
//
// Within no_sync(), and always at stage 1, gradients stay on their rank (travels() is false).
// Gathers take place as always, since blocks need their weights. left_ tells that the gradients of
// this step have been sent, so that step() does not send them again.
//
// Threads: forward, the hooks and the callback at the end run on the thread of the program, one
// after the other.
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
    const auto run = std::make_shared<internal::Run>();
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
  // The transfers of the last backward end before new ones begin.
  if (travels()) reducer_->settle();
  left_ = false;
  // Autograd calls it once all gradients of this backward() are done.
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = self()] { self->end_backward(); });
}

void ShardedModel::open(const RunPtr& run) {
  if (run->is_open()) return;
  guarded([&] {
    begin_backward();
    running_->open(run);
  });
}

void ShardedModel::input_done(const RunPtr& run) {
  if (run->is_open()) guarded([&] { running_->input_done(run); });
}

void ShardedModel::on_ready(int param) {
  guarded([&] {
    samples_->in_backward();
    begin_backward();
    if (!travels() && paused_ == 0) watch().gradients().note(param);
    const int complete = reducer_->ready(param, travels());
    if (complete >= 0 && running_) running_->close_unit(complete);
  });
}

void ShardedModel::end_backward() {
  guarded([&] {
    in_backward_ = false;
    // Units first, since the rest of the pass needs their memory.
    if (running_) running_->close_all();
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
  if (running_) guarded([&] { running_->keep_all(static_cast<int>(blocks_.size())); });
}

void ShardedModel::reshard() {
  if (running_) guarded([&] { running_->release_kept(); });
}

void ShardedModel::end_pass() {
  if (passes_) guarded([&] { passes_->finish(Direction::kForward); });
}

}  // namespace weft::engine
