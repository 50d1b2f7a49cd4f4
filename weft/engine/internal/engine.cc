// The base of both placements. It works through hooks on the trained parameters, since only
// autograd knows when a gradient is complete. In each backward(), a parameter goes through:
//
//   hook before the node that adds to grad()   SampleCount::before_gradient(), begin_adding()
//   autograd adds the gradient to grad()
//   hook after it                              note_gradient(), on_ready() of the placement
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
// for this rank until the deadline. A check whose answer all ranks get alike, such as refuse(),
// runs outside of it: nothing has changed then, and the group stays usable.
#include "weft/engine/internal/engine.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "weft/base/caught/caught.h"
#include "weft/comm/texts.h"
#include "weft/engine/internal/overlaps.h"
#include "weft/engine/internal/ready_hook.h"
#include "weft/engine/internal/replica.h"
#include "weft/engine/internal/sharded_model.h"

namespace weft::engine {
namespace {

// "fc1.weight Float[128, 784]; …": the list on which all ranks must agree.
std::string list_of(const std::vector<internal::Param>& params) {
  std::string list;
  for (const auto& param : params) {
    list += checkpoint::outline({checkpoint::whole_slice(param.name, param.tensor)});
    if (!param.tensor.requires_grad()) list.insert(list.size() - 2, " frozen");
  }
  return list;
}

}  // namespace

Engine::Engine(Context context)
    : blocks_(std::move(context.blocks)),
      options_(std::move(context.options)),
      group_(std::move(context.group)) {
  for (const Block& block : blocks_) prepare_buffers(*block.module, block.name);
  std::unordered_map<const c10::TensorImpl*, std::size_t> known;
  for (int block = 0; block < static_cast<int>(blocks_.size()); ++block) {
    const auto& [name, module] =
        std::tie(blocks_[internal::index(block)].name, blocks_[internal::index(block)].module);
    for (const auto& item : module->named_parameters(true)) {
      const auto [found, is_new] =
          known.try_emplace(item.value().unsafeGetTensorImpl(), params_.size());
      if (is_new)
        params_.push_back({(name.empty() ? "" : name + ".") + item.key(), item.value(), {}});
      auto& users = params_[found->second].blocks;
      if (users.empty() || users.back() != block) users.push_back(block);
    }
  }
  internal::check_apart(params_);
  const auto trains = [](const internal::Param& param) { return param.tensor.requires_grad(); };
  trained_ = static_cast<std::size_t>(
      std::stable_partition(params_.begin(), params_.end(), trains) - params_.begin());
  WEFT_REQUIRE(trained_ > 0, "data_parallel, sharded: no parameter requires a gradient");
  std::vector<std::string> all = names();
  std::sort(all.begin(), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end());
  WEFT_REQUIRE(twice == all.end(),
               "sharded: two parameters are called '" + *twice + "'; give blocks different names");
  if (!options_.check) return;
  std::vector<at::Tensor> tensors;
  for (const internal::Param& param : params_) tensors.push_back(param.tensor);
  options_.check->watch(names(), std::move(tensors));
}

// Each rank sends a hash of its list. If one differs from rank 0's, both lists are sent and the
// error names the first difference.
int Engine::check_same() {
  // Ranks may have made different numbers of models before this one.
  static std::atomic<std::int64_t> models = 0;  // of this process; rank 0's number counts
  const bool on_device = is_on_device();
  number_ = ++models;
  if (group_.size() == 1) return on_device ? 1 : 0;
  const std::string mine = list_of(params_);
  at::Tensor hash = at::tensor(
      {static_cast<std::int64_t>(std::hash<std::string>{}(mine) >> 1),
       static_cast<std::int64_t>(mine.size()), static_cast<std::int64_t>(on_device), number_},
      at::kLong);
  at::Tensor all = at::empty({group_.size(), 4}, at::kLong);
  group_.all_gather(all, hash);
  for (int peer = 1; peer < group_.size(); ++peer) {
    if (at::equal(all[peer].narrow(0, 0, 2), all[0].narrow(0, 0, 2))) continue;
    const std::string first = comm::broadcast_text(group_, mine),
                      other = comm::broadcast_text(group_, mine, peer);
    const auto [here, there] = comm::first_difference(first, other);
    throw Error(Errc::kInvalidArgument,
                "the ranks' modules differ: rank 0 has " + here + ", and " + there + " on rank " +
                    std::to_string(peer),
                {"data_parallel", group_.rank(), peer});
  }
  number_ = all[0][3].item<std::int64_t>();
  return static_cast<int>(all.select(1, 2).sum().item<std::int64_t>());
}

bool Engine::is_on_device() const {
  const at::Device device = params_[0].tensor.device();
  for (const internal::Param& param : params_) {
    WEFT_REQUIRE(param.tensor.device() == device,
                 "data_parallel: '" + params_[0].name + "' is on " + device.str() + " and '" +
                     param.name + "' on " + param.tensor.device().str() +
                     "; move the whole model to one device");
  }
  return !device.is_cpu();
}

void Engine::start() {
  versions_.resize(trained_);
  samples_->ask([weak = weak_from_this()] {
    const auto engine = weak.lock();
    return engine && engine->are_gradients_dropped();
  });
  for (std::size_t i = 0; i < trained_; ++i) {
    add_ready_hook(params_[i].tensor, [weak = weak_from_this(), param = static_cast<int>(i)] {
      auto engine = weak.lock();
      if (!engine) return;
      engine->note_gradient(param);
      engine->on_ready(param);
    });
  }
  keep_hooks();
}

void Engine::check_module() {
  watch().check(true);
  keep_hooks();
}

void Engine::keep_hooks() {
  const std::function<void()> tell = [weak = weak_from_this()] {
    auto engine = weak.lock();
    if (!engine) return;
    engine->samples_->before_gradient();
    engine->begin_adding();
  };
  hooked_.resize(trained_);
  for (std::size_t i = 0; i < trained_; ++i) keep_before_hook(hooked_[i], params_[i].tensor, tell);
}

void Engine::note_gradient(int param) {
  const at::Tensor& gradient = params_[internal::index(param)].tensor.grad();
  if (gradient.defined()) versions_[internal::index(param)] = gradient._version();
}

// zero_grad() resets them, or fills them with zeros.
bool Engine::are_gradients_dropped() const {
  if (hidden_ && hidden_->are_hidden()) return false;
  for (std::size_t i = 0; i < trained_; ++i) {
    const at::Tensor& gradient = params_[i].tensor.grad();
    if (!gradient.defined()) continue;
    // An equal version means that nothing has written to it since backward(). Only others are read.
    if (gradient._version() == versions_[i]) return false;
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.count_nonzero().item<std::int64_t>() > 0) return false;
  }
  return true;
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

bool Engine::is_held_changed_anywhere() const {
  at::Tensor changed = at::full({1}, is_held_changed() ? 1 : 0, at::kInt);
  if (group_.size() > 1) group_.all_reduce(changed, ReduceOp::kMax);
  return changed.item<int>() != 0;
}

internal::Updates& Engine::updates() {
  WEFT_CHECK(updates_ != nullptr, "the model has no optimizer");
  return *updates_;
}

std::vector<std::string> Engine::names() const {
  std::vector<std::string> all;
  for (const auto& param : params_) all.push_back(param.name);
  return all;
}

Tensors Engine::buffers() const {
  Tensors all;
  for (const auto& block : blocks_) {
    for (const at::Tensor& buffer : block.module->buffers(true)) all.push_back(buffer);
  }
  return all;
}

void Engine::make_whole() {
  internal::WholeUpdates::Context context{*updates_, {}, {}, options_.whole_tensors};
  for (std::size_t i = 0; i < trained_; ++i) {
    context.names.push_back(params_[i].name);
    context.shapes.push_back(params_[i].tensor.sizes().vec());
  }
  whole_ = internal::make_whole_updates(std::move(context));
}

void Engine::update_whole(std::vector<internal::WholePiece> pieces, const std::vector<bool>& used,
                          bool divided, bool once) {
  internal::Generation generation;
  if (once && group_.size() > 1)
    generation = [this](int param) { return watch().generation(param); };
  const auto changed = whole_->update({std::move(pieces), used, group_, divided, generation});
  if (changed) watch().refuse_written(*changed, *changed);
}

void Engine::look_at_whole(const std::vector<internal::WholePiece>& pieces, bool note) {
  const auto changed = whole_->look(
      pieces, [this](int param) { return watch().generation(param); }, note);
  if (changed) watch().refuse_written(*changed, *changed);
}

Engine::NamedTensors Engine::whole_state() const {
  NamedTensors all;
  for (std::size_t i = 0; whole_ && i < trained_; ++i) {
    for (auto& [name, tensor] : whole_->state(static_cast<int>(i)))
      all.emplace_back(params_[i].name + "." + name, std::move(tensor));
  }
  return all;
}

Engine::NamedTensors Engine::state() {
  const at::NoGradGuard guard;
  return guarded([&] {
    settle();
    NamedTensors all;
    each_whole([&](const std::string& name, const at::Tensor& whole) {
      all.emplace_back(name, whole.clone());
    });
    if (group_.rank() != 0) return NamedTensors{};
    add_steps(all);
    return all;
  });
}

void Engine::add_steps(NamedTensors& state) const {
  for (std::size_t i = 0; i < trained_; ++i) {
    state.emplace_back(params_[i].name + ".step",
                       at::scalar_tensor(updates_->steps(static_cast<int>(i)), at::kLong));
  }
  state.emplace_back("steps", at::scalar_tensor(steps_, at::kLong));
  for (const auto& [name, tensor] : whole_state()) state.emplace_back(name, tensor.clone());
}

void Engine::take_steps(const std::map<std::string, at::Tensor>& state) {
  for (auto& [name, tensor] : whole_state()) at::Tensor(tensor).copy_(state.at(name));
  for (std::size_t i = 0; i < trained_; ++i)
    updates_->steps(static_cast<int>(i)) = state.at(params_[i].name + ".step").item<std::int64_t>();
  steps_ = state.at("steps").item<std::int64_t>();
}

// Returns an empty text if everything fits.
std::string Engine::mismatch(const NamedTensors& given) const {
  const std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  std::map<std::string, std::vector<std::int64_t>> expected{{"steps", {}}};
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto sizes = params_[i].tensor.sizes().vec();
    expected[params_[i].name] = sizes;
    if (i >= trained_) continue;
    for (std::size_t array = 0; array < updates_->arrays_of(static_cast<int>(i)); ++array)
      expected[params_[i].name + "." + updates_->arrays()[array]] = sizes;
    expected[params_[i].name + ".step"];
  }
  for (const auto& [name, tensor] : whole_state()) expected[name] = tensor.sizes().vec();
  for (const auto& [name, sizes] : expected) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) return "the state has no '" + name + "'";
    if (found->second.sizes().vec() != sizes)
      return "'" + name + "' has another shape in the state than in the model";
  }
  for (const auto& [name, tensor] : by_name) {
    if (expected.count(name) == 0)
      return "the state has '" + name + "', which this model and optimizer do not have";
  }
  return "";
}

// Throws on all ranks if rank 0 has an error text.
void Engine::refuse(const std::string& why) const {
  const std::string first = comm::broadcast_text(group_, why);
  if (!first.empty())
    throw Error(Errc::kInvalidArgument, "load_state: " + first, {"load_state", group_.rank()});
}

void Engine::load_state(const NamedTensors& given) {
  const at::NoGradGuard guard;
  // All ranks know that the state fits before any of them changes a value.
  refuse(group_.rank() == 0 ? mismatch(given) : "");
  guarded([&] {
    settle();
    std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
    take_over(by_name);
    at::Tensor steps = at::zeros({static_cast<std::int64_t>(trained_) + 1}, at::kLong);
    const auto each_step = [&](const auto& visit) {
      for (std::size_t i = 0; i <= trained_; ++i)
        visit(i < trained_ ? params_[i].name + ".step" : "steps",
              steps[static_cast<std::int64_t>(i)]);
    };
    if (group_.rank() == 0)
      each_step([&](const std::string& name, at::Tensor step) { step.copy_(by_name.at(name)); });
    group_.broadcast(steps);
    each_step([&](const std::string& name, const at::Tensor& step) { by_name[name] = step; });
    for (const auto& [name, own] : whole_state()) {
      at::Tensor value = group_.rank() == 0 ? by_name.at(name).to(own.scalar_type()).contiguous()
                                            : at::empty_like(own, at::MemoryFormat::Contiguous);
      group_.broadcast(value);
      by_name[name] = value;
    }
    take_steps(by_name);
  });
}

std::shared_ptr<Engine> make_engine(Engine::Context context, OptimizerSpec optimizer) {
  // Hooks communicate at times that the program does not choose. In a group of their own, their
  // collectives do not mix with the program's.
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
