// The path of a step of a sharded model, from top to bottom: forward, backward, step.
//
// At stage 3 with private weights, hooks of autograd say when a block needs its units. Of three
// blocks 0, 1, 2:
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
// Order of step(), and the reason for each wait:
//   collect()            takes part in passes that only peers have made; waits for all sums
//   changes_->take()     values that the program has loaded count before the update
//   norm()               each rank has a part of the squares, so all get the norm by one sum
//   drain()              gathers under way still read the masters that change next
//   barrier, if shared   other ranks may still compute with these weights
//   update()             each rank updates its own shard
//   publish()            masters become the weights of all; ends with a gather or a barrier
//   sync_buffers()       statistics of rank 0
//
// After publish() a rank may compute with all weights. At stage 3 with private weights it does
// nothing: the next gather reads the masters.
//
// An exception in a hook of the program ends a backward() without end_backward(). Gradients that
// stay on their rank are then as in one process. Else a part of them has left, or units are
// gathered, and peers may wait for the rest. The next call then refuses and aborts the groups
// (check_whole()).
//
// Threads: forward, the hooks and the callback at the end run on the thread of the program, one
// after the other.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <map>

#include "weft/engine/internal/sharded_model.h"

namespace weft::engine {

using Direction = internal::ParameterGathers::Direction;

// Autograd calls end() once all gradients of this backward() are done. If an exception ends it, it
// destroys the callback without a call. The destructor only notes that.
class ShardedModel::Backward {
 public:
  Backward(std::weak_ptr<ShardedModel> model, bool sends)
      : model_(std::move(model)), sends_(sends) {}
  ~Backward() {
    const auto model = model_.lock();
    if (model && !ended_) model->end_broken_backward(sends_);
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  void end() {
    ended_ = true;
    if (const auto model = model_.lock()) model->end_backward();
  }

 private:
  const std::weak_ptr<ShardedModel> model_;
  const bool sends_;
  bool ended_ = false;
};

void ShardedModel::end_broken_backward(bool sends) {
  // If an error of this model has ended it, the groups are aborted already.
  if (!std::exchange(in_backward_, false)) return;
  broken_ = sends || gathers_ != nullptr;
  if (!broken_) gradients_->finish(false);
}

void ShardedModel::check_whole() const {
  WEFT_REQUIRE(
      !broken_,
      "a backward() of this model ended by an exception, after a part of its gradients was "
      "sent; make the parallel model again");
}

Tensors ShardedModel::run(std::size_t block, const Tensors& given) {
  return guarded([&] {
    check_whole();
    if (!gathers_) return Engine::run(block, given);
    const bool learns = at::GradMode::is_enabled();
    const auto run = std::make_shared<internal::Run>();
    run->block = static_cast<int>(block);
    if (learns) {
      forward_pending_ = true;
      hook_inputs(run, given);
    }
    gathers_->enter(run->block, Direction::kForward);
    Tensors outputs = Engine::run(block, given);
    for (const int unit : gathers_->units_of(run->block)) gathers_->release(unit);
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
  check_whole();
  in_backward_ = true;
  stepped_ = false;
  watch().check(true);
  // The transfers of the last backward end before new ones begin.
  if (travels()) gradients_->settle();
  left_ = false;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [backward = std::make_shared<Backward>(self(), travels())] { backward->end(); });
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
    company().note();
    begin_backward();
    if (!travels() && paused_ == 0) watch().gradients().note(param);
    const int complete = gradients_->ready(param, travels());
    if (complete >= 0 && running_) running_->close_unit(complete);
  });
}

void ShardedModel::end_backward() {
  guarded([&] {
    in_backward_ = false;
    // Units first, since the rest of the pass needs their memory.
    if (running_) running_->close_all();
    if (gathers_) gathers_->finish(Direction::kBackward);
    forward_pending_ = false;
    if (travels()) {
      send_all();
    } else {
      gradients_->finish(false);
    }
    hide_gradients();
  });
}

// The gradients of this step leave this rank.
void ShardedModel::send_all() {
  gradients_->finish(true);
  left_ = true;
  samples_->reset();
  company().forget();
}

void ShardedModel::send_gradients() {
  guarded([&] {
    check_whole();
    gradients_->settle();
    send_all();
    hide_gradients();
  });
}

void ShardedModel::empty_passes(bool forward) {
  if (gathers_) {
    if (forward) gathers_->finish(Direction::kForward, true);
    gathers_->finish(Direction::kBackward, true);
  }
  forward_pending_ = false;
}

void ShardedModel::skip_batch() {
  guarded([&] {
    check_whole();
    stepped_ = false;
    show_gradients();
    if (travels()) gradients_->settle();
    empty_passes(true);
    if (!travels()) return;
    send_all();
    hide_gradients();
  });
}

void ShardedModel::unshard() {
  if (running_) guarded([&] { running_->unshard_all(static_cast<int>(blocks_.size())); });
}

void ShardedModel::reshard() {
  if (running_) guarded([&] { running_->reshard_all(); });
}

void ShardedModel::end_pass() {
  if (gathers_) guarded([&] { gathers_->finish(Direction::kForward); });
}

// All gradients have reached their shards.
void ShardedModel::collect() {
  check_whole();
  end_pass();
  const Shown shown(*this);
  if (!left_) {
    watch().gradients().check();
    watch().gradients().forget();
    gradients_->settle();
    // No backward of this rank has sent gradients. Peers may wait in the gathers of theirs, and in
    // those of a forward if this rank had none.
    if (options_.stage > 1) empty_passes(!forward_pending_);
    send_all();
  }
  gradients_->settle();
}

void ShardedModel::await_gradients() {
  guarded([&] {
    if (!stepped_) collect();
  });
}

void ShardedModel::step(double scale) {
  const at::NoGradGuard guard;
  guarded([&] {
    collect();
    WEFT_REQUIRE(replica_sums_->is_in_range(),
                 "step: a sum of gradients is not finite in the codec f16, whose largest number is "
                 "65504; use the codec bf16, or make gradients smaller");
    changes_->take(steps_ + 1, gradients_->report().alike());
    const double most = updates_->spec().max_grad_norm;
    if (most > 0) {
      const double norm = gradients_->norm() * std::abs(scale);
      scale *= optim::clip_factor(norm, most);
    }
    gradients_->scale(scale);
    if (gathers_) gathers_->drain();
    if (shared_) group_.barrier();
    shard_updates_->update(gradients_->shards(), gradients_->report().used());
    memory_->publish(/*frozen=*/false);
    sync_buffers();
    watch().rebase();
    note_held();
    replica_sums_->commit();
    ++steps_;
    left_ = false;
    stepped_ = true;
  });
}

// Agrees first among the replicas of rank 0's shard. These then tell the other ranks of their
// groups.
void ShardedModel::sync_buffers() {
  if (options_.replicas) buffers_.broadcast(*options_.replicas);
  if (group_.size() > 1) buffers_.broadcast(group_);
}

void ShardedModel::zero_grad() {
  guarded([&] {
    check_whole();
    if (hidden_) hidden_->show();
    gradients_->clear();
    samples_->drop();
    company().forget();
    watch().gradients().forget();
  });
  left_ = stepped_ = false;
}

double ShardedModel::grad_norm() {
  return guarded([&] {
    if (!stepped_) collect();
    return gradients_->norm();
  });
}

Sharded::Finite ShardedModel::are_finite() {
  return guarded([&]() -> Sharded::Finite {
    if (!stepped_) collect();
    // Each rank knows only its own sums of a codec with a narrow range.
    return {gradients_->report().all_finite() && replica_sums_->is_in_range(),
            !replica_sums_->is_narrow()};
  });
}

void ShardedModel::each_gradient(
    const std::function<void(const std::string&, const at::Tensor&)>& take) {
  guarded([&] {
    await_gradients();
    gradients_->each_piece(take);
  });
}

ShardedModel::NamedTensors ShardedModel::gradients() {
  const at::NoGradGuard guard;
  return guarded([&] {
    if (!stepped_) collect();
    const std::vector<bool>& used = gradients_->report().used();
    std::map<std::string, bool> in_use;
    for (std::size_t i = 0; i < params_.size(); ++i) in_use[params_[i].name] = used[i];
    const auto& shards = gradients_->shards();
    NamedTensors all;
    for (std::size_t i = 0; i < units().size(); ++i) {
      if (!units()[i].trainable) continue;
      state_->each_whole_of(units()[i], shards[i], "",
                            [&](const std::string& name, const at::Tensor& whole) {
                              if (in_use[name]) all.emplace_back(name, whole.clone());
                            });
    }
    return all;
  });
}

}  // namespace weft::engine
