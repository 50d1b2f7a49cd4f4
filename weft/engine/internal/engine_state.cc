#include "weft/engine/internal/engine_state.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "weft/comm/texts.h"
#include "weft/engine/internal/engine.h"
#include "weft/engine/internal/state_slices.h"

namespace weft::engine {

EngineState::EngineState(Engine& engine)
    : engine_(engine), group_(engine.group_), params_(engine.params_) {}

EngineState::NamedTensors EngineState::whole_tensors() const {
  NamedTensors all;
  for (std::size_t i = 0; engine_.whole_ && i < params_.trained(); ++i) {
    for (auto& [name, tensor] : engine_.whole_->state(static_cast<int>(i)))
      all.emplace_back(params_[i].name + "." + name, std::move(tensor));
  }
  return all;
}

EngineState::NamedTensors EngineState::whole() {
  const at::NoGradGuard guard;
  return engine_.guarded([&] {
    engine_.settle();
    NamedTensors all;
    engine_.each_whole([&](const std::string& name, const at::Tensor& whole) {
      all.emplace_back(name, whole.clone());
    });
    if (group_.rank() != 0) return NamedTensors{};
    add_steps(all);
    return all;
  });
}

void EngineState::add_steps(NamedTensors& state) const {
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    state.emplace_back(params_[i].name + ".step",
                       at::scalar_tensor(engine_.updates_->steps(static_cast<int>(i)), at::kLong));
  }
  state.emplace_back("steps", at::scalar_tensor(engine_.steps_, at::kLong));
  for (const auto& [name, tensor] : whole_tensors()) state.emplace_back(name, tensor.clone());
}

void EngineState::take_steps(const std::map<std::string, at::Tensor>& state) {
  for (auto& [name, tensor] : whole_tensors()) at::Tensor(tensor).copy_(state.at(name));
  for (std::size_t i = 0; i < params_.trained(); ++i)
    engine_.updates_->steps(static_cast<int>(i)) =
        state.at(params_[i].name + ".step").item<std::int64_t>();
  engine_.steps_ = state.at("steps").item<std::int64_t>();
}

// Returns an empty text if everything fits.
std::string EngineState::mismatch(const NamedTensors& given) const {
  const std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  std::map<std::string, std::vector<std::int64_t>> expected{{"steps", {}}};
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto sizes = params_[i].tensor.sizes().vec();
    expected[params_[i].name] = sizes;
    if (i >= params_.trained()) continue;
    for (std::size_t array = 0; array < engine_.updates_->arrays_of(static_cast<int>(i)); ++array)
      expected[params_[i].name + "." + engine_.updates_->arrays()[array]] = sizes;
    expected[params_[i].name + ".step"];
  }
  for (const auto& [name, tensor] : whole_tensors()) expected[name] = tensor.sizes().vec();
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
void EngineState::refuse(const std::string& why) const {
  const std::string first = comm::broadcast_text(group_, why);
  if (!first.empty())
    throw Error(Errc::kInvalidArgument, "load_state: " + first, {"load_state", group_.rank()});
}

void EngineState::load(const NamedTensors& given) {
  const at::NoGradGuard guard;
  // All ranks know that the state fits before any of them changes a value.
  refuse(group_.rank() == 0 ? mismatch(given) : "");
  engine_.guarded([&] {
    engine_.settle();
    std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
    engine_.take_over(by_name);
    at::Tensor steps = at::zeros({static_cast<std::int64_t>(params_.trained()) + 1}, at::kLong);
    const auto each_step = [&](const auto& visit) {
      for (std::size_t i = 0; i <= params_.trained(); ++i)
        visit(i < params_.trained() ? params_[i].name + ".step" : "steps",
              steps[static_cast<std::int64_t>(i)]);
    };
    if (group_.rank() == 0)
      each_step([&](const std::string& name, at::Tensor step) { step.copy_(by_name.at(name)); });
    group_.broadcast(steps);
    each_step([&](const std::string& name, const at::Tensor& step) { by_name[name] = step; });
    for (const auto& [name, own] : whole_tensors()) {
      at::Tensor value = group_.rank() == 0 ? by_name.at(name).to(own.scalar_type()).contiguous()
                                            : at::empty_like(own, at::MemoryFormat::Contiguous);
      group_.broadcast(value);
      by_name[name] = value;
    }
    take_steps(by_name);
  });
}

checkpoint::Slices EngineState::shards(const Sharded::Placing& placing) {
  const at::NoGradGuard guard;
  engine_.settle();
  checkpoint::Slices all = engine_.slices(placing, internal::Wanted::kToSave);
  if (!engine_.updates_) return all;
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    const std::string name = internal::rectangle_of(params_[i], placing).name;
    if (name.empty() || static_cast<int>(i) % group_.size() != group_.rank()) continue;
    all.push_back(checkpoint::whole_slice(
        name + ".step",
        at::scalar_tensor(engine_.updates_->steps(static_cast<int>(i)), at::kLong)));
    if (!engine_.whole_) continue;
    for (const auto& [state, tensor] : engine_.whole_->state(static_cast<int>(i)))
      all.push_back(checkpoint::whole_slice(name + "." + state, tensor));
  }
  if (group_.rank() == 0)
    all.push_back(checkpoint::whole_slice("steps", at::scalar_tensor(engine_.steps_, at::kLong)));
  return all;
}

checkpoint::Slices EngineState::held(const Sharded::Placing& placing) {
  const at::NoGradGuard guard;
  engine_.settle();
  checkpoint::Slices all = engine_.slices(placing, internal::Wanted::kToLoad);
  if (engine_.counts_held_apart()) held_changes_.lend(all);
  return all;
}

void EngineState::take_changes() {
  const at::NoGradGuard guard;
  engine_.guarded([&] {
    engine_.begin_load();
    engine_.watch().check(false);  // tensors of held() have versions of their own
    if (!is_held_changed_anywhere()) engine_.check_values();
    engine_.take_loaded();
    engine_.end_load();
  });
}

void EngineState::check_changes() {
  const at::NoGradGuard guard;
  engine_.guarded([&] {
    engine_.settle();
    if (!is_held_changed_anywhere()) engine_.check_values();
  });
}

void EngineState::load_shards(const checkpoint::SliceSource& source,
                              const Sharded::Placing& placing, bool weights_only) {
  const at::NoGradGuard guard;
  engine_.settle();
  weights_only = weights_only || !engine_.updates_;
  std::map<int, at::Tensor> steps;
  const at::Tensor done = at::scalar_tensor(engine_.steps_, at::kLong);
  const auto wanted = [&] {
    checkpoint::Slices all = engine_.slices(
        placing, weights_only ? internal::Wanted::kWeights : internal::Wanted::kToReplace);
    for (std::size_t i = 0; !weights_only && i < params_.trained(); ++i) {
      const std::string name = internal::rectangle_of(params_[i], placing).name;
      if (name.empty()) continue;
      at::Tensor& step = steps[static_cast<int>(i)] = at::scalar_tensor(0, at::kLong);
      all.push_back(checkpoint::whole_slice(name + ".step", step));
      if (!engine_.whole_) continue;
      for (const auto& [state, tensor] : engine_.whole_->state(static_cast<int>(i)))
        all.push_back(checkpoint::whole_slice(name + "." + state, tensor));
    }
    if (!weights_only) all.push_back(checkpoint::whole_slice("steps", done));
    return all;
  };
  on_all_ranks([&] { source.check(wanted()); });
  // Drops values that the program has given by torch::load(). The slices then have other memory.
  engine_.go_home();
  const checkpoint::Slices mine = wanted();
  engine_.guarded([&] { engine_.begin_load(); });
  on_all_ranks([&] { source.fill(mine); });
  engine_.guarded([&] {
    for (const auto& [param, step] : steps)
      engine_.updates_->steps(param) = step.item<std::int64_t>();
    engine_.steps_ = done.item<std::int64_t>();
    engine_.end_load();
  });
}

// An error of the group itself ends all groups of the model.
void EngineState::on_all_ranks(const std::function<void()>& body) {
  const auto exchange = [&](const std::string& mine) {
    return engine_.guarded([&] { return comm::all_gather_texts(group_, mine); });
  };
  comm::together(
      group_, body,
      {.operation = "load_shards", .failed = "cannot load its slices", .exchange = exchange});
}

bool EngineState::is_held_changed_anywhere() const {
  at::Tensor changed = at::full({1}, is_held_changed() ? 1 : 0, at::kInt);
  if (group_.size() > 1) group_.all_reduce(changed, ReduceOp::kMax);
  return changed.item<int>() != 0;
}

}  // namespace weft::engine
