// The base of both placements. It works through hooks on the trained parameters, since only
// autograd knows when a gradient is complete. In each backward(), a parameter goes through:
//
//   hook before the node that adds to grad()   SampleCount::before_gradient(), begin_adding()
//   autograd adds the gradient to grad()
//   hook after it                              GradientHooks::note(), on_ready() of the placement
//
// begin_adding() must come before the addition. Between backward() and step(), grad() may be a
// placeholder without memory (HiddenGradients).
//
// The first hook belongs to a node of the graph, and a parameter gets another node after set_() or
// torch::load(). So check_module() installs missing hooks at the start of each forward. Hooks hold
// the engine weakly, since parameters may outlive it. For this reason start() is not a part of the
// constructor.
//
// Threads: there are no locks. One thread at a time calls the engine. All parameters are on one
// device, so autograd runs the hooks one after the other while the caller of backward() waits.
//
// Errors: collective parts run in guarded(). An exception there aborts the group, so no peer waits
// for this rank until the deadline. A check whose answer all ranks get alike runs outside of it:
// nothing has changed then, and the group stays usable.
#include "weft/engine/internal/engine.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "weft/base/caught/caught.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/replica.h"
#include "weft/engine/internal/sharded_model.h"

namespace weft::engine {
namespace {

std::vector<Block> prepared(std::vector<Block> blocks) {
  for (const Block& block : blocks) prepare_buffers(*block.module, block.name);
  return blocks;
}

}  // namespace

Engine::Engine(Context context)
    : blocks_(prepared(std::move(context.blocks))),
      options_(std::move(context.options)),
      group_(std::move(context.group)),
      params_(blocks_),
      program_(context.program) {
  if (!options_.check) return;
  std::vector<at::Tensor> tensors;
  for (const internal::Param& param : params_.all()) tensors.push_back(param.tensor);
  options_.check->watch(params_.names(), std::move(tensors));
}

void Engine::start() {
  samples_->ask([weak = weak_from_this()] {
    const auto engine = weak.lock();
    return engine && !(engine->hidden_ && engine->hidden_->are_hidden()) &&
           engine->hooks_.are_dropped();
  });
  samples_->on_output([weak = weak_from_this()] {
    if (const auto engine = weak.lock()) engine->hooks_.note_grad();
  });
  const auto before = [weak = weak_from_this()] {
    auto engine = weak.lock();
    if (!engine) return;
    const internal::ForCaller here(engine->caller_);
    engine->samples_->before_gradient();
    engine->begin_adding();
  };
  hooks_.install(before, [weak = weak_from_this()](int param) {
    auto engine = weak.lock();
    if (!engine) return;
    const internal::ForCaller here(engine->caller_);
    engine->hooks_.note(param);
    engine->on_ready(param);
  });
}

void Engine::check_module() {
  // Without gradients, models may share parameters: one may evaluate what another one trains.
  const int shared = at::GradMode::is_enabled() ? company().shared() : -1;
  WEFT_REQUIRE(shared < 0,
               "'" + params_[internal::index(shared)].name +
                   "' is a parameter of two parallel models that exist at the same time, so both "
                   "would take its gradient; make one module and one parallel model of both, or "
                   "end the other model first");
  watch().check(true);
  hooks_.commit();
  caller_ = {observe::WaitAccount::of_this_thread(), observe::Trace::current_for_others()};
  // backward() or weft's optimizer average the gradients.
  if (updates_ || group_.size() == 1) return;
  const internal::Param* const changed = hooks_.changed_since_grad();
  WEFT_REQUIRE(changed == nullptr,
               "'" + changed->name +
                   "' was changed after torch::autograd::grad() had taken gradients, which weft "
                   "has not averaged over the ranks; use backward(), or weft's optimizer");
}

void Engine::join_company(std::int64_t number) {
  std::vector<at::Tensor> trained;
  for (std::size_t i = 0; i < params_.trained(); ++i) trained.push_back(params_[i].tensor);
  company_.emplace(program_, number, std::move(trained));
}

void Engine::show_gradients() {
  if (!hidden_ || !hidden_->are_hidden()) return;
  const internal::Param* const changed = gradients_count() ? hidden_->changed() : nullptr;
  hidden_->show();
  if (changed == nullptr) return;
  throw Error(
      Errc::kInvalidArgument,
      "the gradient of '" + changed->name +
          "' was changed or dropped after backward(), but step() uses what backward() made; "
          "to clip, use max_grad_norm of the optimizer, and to drop gradients, call "
          "zero_grad() of the optimizer or of the parallel model",
      {"step", group_.rank()});
}

void Engine::hide_gradients() {
  if (hidden_ && paused_ == 0) hidden_->hide();
}

void Engine::begin_watch() {
  const bool buffers =
      options_.stage == 0 ? options_.data_parallel.sync_buffers : options_.sync_buffers;
  watch_.emplace(blocks_, params_, buffers);
}

void Engine::watch_optimizer_settings() {
  watch().settings().watch_optimizer([this]() -> internal::RankSettings::Progress {
    return {optim::lr_of(updates_->spec().rule), steps_};
  });
}

void Engine::abandon() noexcept {
  try {
    abandon("rank " + std::to_string(group_.rank()) + " abandoned its model during a step");
  } catch (const std::bad_alloc&) {  // the peers run into their deadlines
  }
}

void Engine::abandon_by(const std::exception& error) noexcept {
  try {
    abandon("rank " + std::to_string(group_.rank()) +
            " ended a step by: " + as_error(error).message());
  } catch (const std::bad_alloc&) {  // the peers run into their deadlines
    abandon();
  }
}

void Engine::abandon(const std::string& why) noexcept {
  try {
    group_.abort(Error(Errc::kAborted, why));
  } catch (const std::exception&) {  // if the abort fails, the peers run into their deadlines
  }
}

Tensors Engine::run(std::size_t block, const Tensors& given) {
  WEFT_REQUIRE(block < blocks_.size() && blocks_[block].forward,
               "sharded: there is no block " + std::to_string(block) + " with a forward function");
  return guarded([&] {
    const bool learns = at::GradMode::is_enabled();
    // A forward for validation does not begin the next step, so grad_norm() and gradients() stay
    // valid.
    stepped_ = stepped_ && !learns;
    if (block == 0) check_module();
    if (learns && block == 0 && !given.empty())
      samples_->begin(static_cast<double>(given[0].dim() > 0 ? given[0].size(0) : 1));
    Tensors inputs = given;
    for (at::Tensor& input : inputs) {
      if (options_.compute && input.is_floating_point()) input = input.to(*options_.compute);
    }
    Tensors outputs = blocks_[block].forward(inputs);
    if (learns) samples_->add_outputs(outputs);
    return outputs;
  });
}

at::Tensor Engine::forward(const at::Tensor& input) {
  Tensors values{input};
  for (std::size_t block = 0; block < blocks_.size(); ++block) values = run(block, values);
  WEFT_REQUIRE(values.size() == 1,
               "sharded: forward() needs a last block with one output; use run()");
  return values[0];
}

bool Engine::has_loaded(std::size_t count) {
  const bool some = !watch().moved(count).empty();
  if (group_.size() == 1) return some;
  // One maximum answers both questions. If both flags are set, the ranks differ.
  at::Tensor some_and_none = at::tensor({some ? 1 : 0, some ? 0 : 1}, at::kInt);
  group_.all_reduce(some_and_none, ReduceOp::kMax);
  if (some_and_none[0].item<int>() == 0) return false;
  WEFT_REQUIRE(some_and_none[1].item<int>() == 0,
               "parameters have other memory than the model gave them (torch::load or set_data) on "
               "some ranks only; load weights on all ranks");
  return true;
}

void Engine::go_home() {
  const at::NoGradGuard guard;
  for (const int param : watch().moved(params_.size())) watch().bring_home(param);
}

internal::Updates& Engine::updates() {
  WEFT_CHECK(updates_ != nullptr, "the model has no optimizer");
  return *updates_;
}

Tensors Engine::buffers() const {
  Tensors all;
  for (const auto& block : blocks_) {
    for (const at::Tensor& buffer : block.module->buffers(true)) all.push_back(buffer);
  }
  return all;
}

void Engine::make_whole(bool divided, std::vector<internal::WholePiece> shared) {
  internal::WholeUpdates::Context context{.group = group_,
                                          .updates = *updates_,
                                          .watch = watch(),
                                          .names = {},
                                          .shapes = {},
                                          .options = options_.whole_tensors,
                                          .divided = divided,
                                          .shared = std::move(shared)};
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    context.names.push_back(params_[i].name);
    context.shapes.push_back(params_[i].tensor.sizes().vec());
  }
  whole_ = internal::make_whole_updates(std::move(context));
}

std::shared_ptr<Engine> make_engine(Engine::Context context, OptimizerSpec optimizer) {
  // Hooks communicate at times that the program does not choose. In a group of their own, their
  // collectives do not mix with the program's.
  context.program = &context.group.backend();
  context.group = context.group.duplicate(part_name(context.group, "gradients"));
  std::shared_ptr<Engine> engine;
  if (context.options.stage == 0) {
    const auto replica = std::make_shared<Replica>(std::move(context));
    replica->use_optimizer(std::move(optimizer), true);
    engine = replica;
  } else {
    engine = std::make_shared<ShardedModel>(std::move(context), std::move(optimizer));
  }
  engine->start();
  return engine;
}

}  // namespace weft::engine
