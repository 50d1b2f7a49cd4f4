// The end of a step, and what is saved of a sharded model.
#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <map>

#include "weft/engine/internal/sharded_model.h"
#include "weft/engine/squares.h"
#include "weft/engine/update_rule.h"

namespace weft::parallel {

using Direction = internal::Passes::Direction;

// All gradients have come to their shards.
void ShardedModel::collect() {
  end_pass();
  if (!left_) {
    reducer_->settle();
    if (options_.stage > 1) empty_passes();
    reducer_->finish(true);
    left_ = true;
    samples_ = 0;
  }
  reducer_->settle();
}

void ShardedModel::send_gradients() {
  guarded([&] {
    reducer_->settle();
    reducer_->finish(true);
    left_ = true;
    samples_ = 0;
  });
}

void ShardedModel::await_gradients() {
  guarded([&] {
    if (!stepped_) collect();
  });
}

void ShardedModel::each_gradient(const std::function<void(const std::string&, const at::Tensor&)>& take) {
  guarded([&] {
    await_gradients();
    for (const auto& unit : units_) {
      if (!unit.gradient.defined()) continue;
      for (std::size_t place = 0; place < unit.params.size(); ++place) {
        const auto& param = params_[static_cast<std::size_t>(unit.params[place])];
        const auto piece = internal::piece_of(unit, place, param.tensor.numel(), group_.rank());
        if (piece.end > piece.begin) take(param.name, unit.gradient.narrow(0, piece.at, piece.end - piece.begin));
      }
    }
  });
}

double ShardedModel::norm_of_shards() {
  double squares = 0;
  for (const auto& unit : units_) {
    if (unit.gradient.defined()) squares += internal::squares_of(unit.gradient);
  }
  at::Tensor sum = at::scalar_tensor(squares, at::kDouble);
  gradients_.all_reduce(sum);
  return std::sqrt(sum.item<double>());
}

double ShardedModel::grad_norm() {
  return guarded([&] {
    if (!stepped_) collect();
    return norm_of_shards();
  });
}

void ShardedModel::step(double scale) {
  const at::NoGradGuard guard;
  guarded([&] {
    collect();
    const double most = updates_->spec().max_grad_norm;
    if (most > 0) {
      const double norm = norm_of_shards() * std::abs(scale);
      scale *= std::min(1.0, most / (norm + 1e-6));
    }
    for (auto& unit : units_) {
      if (scale != 1 && unit.gradient.defined()) unit.gradient.mul_(scale);
    }
    if (passes_) passes_->drain();
    if (shared_) gradients_.barrier();
    updates_->step(units_, group_.rank(), reducer_->used());
    publish(false);
    ++steps_;
    left_ = false;
    stepped_ = true;
  });
}

// Masters become the weights that everybody computes with. At stage 3 the next gather does that.
void ShardedModel::publish(bool frozen) {
  const at::NoGradGuard guard;
  if (passes_) return;
  for (auto& unit : units_) {
    if (!unit.trainable && !frozen) continue;
    const at::Tensor mine = unit.flat.narrow(0, group_.rank() * unit.shard, unit.shard);
    if (mine.data_ptr() != unit.master.data_ptr()) mine.copy_(unit.master);
    if (!shared_) gradients_.all_gather(unit.flat, mine.clone());
  }
  if (shared_) gradients_.barrier();
}

void ShardedModel::zero_grad() {
  guarded([&] { reducer_->clear(); });
  left_ = stepped_ = false;
}

// The root gets all ranks' shards, the others an undefined tensor.
at::Tensor ShardedModel::whole_of(const internal::Unit& unit, const at::Tensor& shard) {
  auto parts = gradients_.gather(shard);
  return group_.rank() == 0 ? at::cat(parts).view({unit.elements}) : at::Tensor();
}

at::Tensor ShardedModel::shard_of(const internal::Unit& unit, const at::Tensor& whole) {
  at::Tensor shard = at::empty({unit.shard}, at::TensorOptions(unit.master_type));
  std::vector<at::Tensor> parts;
  for (int rank = 0; group_.rank() == 0 && rank < group_.size(); ++rank) parts.push_back(whole.narrow(0, rank * unit.shard, unit.shard));
  gradients_.scatter(shard, parts);
  return shard;
}

void ShardedModel::take_apart(const internal::Unit& unit, const at::Tensor& whole, const std::string& suffix, NamedTensors& into) const {
  if (!whole.defined()) return;
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const auto& param = params_[static_cast<std::size_t>(unit.params[place])];
    into.emplace_back(param.name + suffix, whole.narrow(0, unit.offsets[place], param.tensor.numel()).view(param.tensor.sizes()).clone());
  }
}

ShardedModel::NamedTensors ShardedModel::gradients() {
  const at::NoGradGuard guard;
  return guarded([&] {
    if (!stepped_) collect();
    NamedTensors all, used;
    for (const auto& unit : units_) {
      if (unit.trainable) take_apart(unit, whole_of(unit, unit.gradient), "", all);
    }
    std::map<std::string, bool> in_use;
    for (std::size_t i = 0; i < params_.size(); ++i) in_use[params_[i].name] = reducer_->used()[i];
    std::copy_if(all.begin(), all.end(), std::back_inserter(used), [&](const auto& entry) { return in_use[entry.first]; });
    return used;
  });
}

ShardedModel::NamedTensors ShardedModel::state() {
  const at::NoGradGuard guard;
  return guarded([&] {
    const auto arrays = state_names(updates_->spec().rule);
    NamedTensors all;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      take_apart(units_[i], whole_of(units_[i], units_[i].master), "", all);
      const auto& state = updates_->state(i);
      for (std::size_t array = 0; array < state.size(); ++array) {
        take_apart(units_[i], whole_of(units_[i], state[array]), "." + arrays[array], all);
      }
    }
    if (group_.rank() != 0) return NamedTensors{};
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (params_[i].tensor.requires_grad()) {
        all.emplace_back(params_[i].name + ".step", at::scalar_tensor(updates_->steps(static_cast<int>(i)), at::kLong));
      }
    }
    all.emplace_back("steps", at::scalar_tensor(steps_, at::kLong));
    return all;
  });
}

// Empty where everything fits.
std::string ShardedModel::mismatch(const NamedTensors& given) const {
  const std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  const auto arrays = state_names(updates_->spec().rule);
  std::map<std::string, std::vector<std::int64_t>> expected;
  expected["steps"];
  for (const auto& param : params_) {
    expected[param.name] = param.tensor.sizes().vec();
    if (!param.tensor.requires_grad()) continue;
    for (const auto& array : arrays) expected[param.name + "." + array] = param.tensor.sizes().vec();
    expected[param.name + ".step"];
  }
  for (const auto& [name, sizes] : expected) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) return "the state has no '" + name + "'";
    if (found->second.sizes().vec() != sizes) return "'" + name + "' of the state has another shape than the model's";
  }
  for (const auto& [name, tensor] : by_name) {
    if (expected.count(name) == 0) return "the state has '" + name + "', which this model and optimiser do not have";
  }
  return "";
}

// Throws on all ranks where rank 0 has a reason.
void ShardedModel::refuse(const std::string& why) {
  at::Tensor length = at::scalar_tensor(static_cast<std::int64_t>(why.size()), at::kLong);
  gradients_.broadcast(length);
  if (length.item<std::int64_t>() == 0) return;
  at::Tensor text = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (group_.rank() == 0) std::memcpy(text.data_ptr(), why.data(), why.size());
  gradients_.broadcast(text);
  throw Error(Errc::kInvalidArgument,
              "load_state: " + std::string(static_cast<const char*>(text.data_ptr()), static_cast<std::size_t>(text.numel())),
              {"load_state", group_.rank()});
}

void ShardedModel::take_over(const std::map<std::string, at::Tensor>& given) {
  const bool root = group_.rank() == 0;
  const auto put = [&](const internal::Unit& unit, const std::string& suffix, at::Tensor& into) {
    at::Tensor whole;
    if (root) whole = at::zeros({unit.elements}, at::TensorOptions(unit.master_type));
    for (std::size_t place = 0; root && place < unit.params.size(); ++place) {
      const at::Tensor& value = given.at(params_[static_cast<std::size_t>(unit.params[place])].name + suffix);
      whole.narrow(0, unit.offsets[place], value.numel()).copy_(value.reshape(-1));
    }
    into.copy_(shard_of(unit, whole));
  };
  const auto arrays = state_names(updates_->spec().rule);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    put(units_[i], "", units_[i].master);
    auto& state = updates_->state(i);
    for (std::size_t array = 0; array < state.size(); ++array) put(units_[i], "." + arrays[array], state[array]);
  }
}

void ShardedModel::take_over_steps(const std::map<std::string, at::Tensor>& given) {
  at::Tensor steps = at::zeros({static_cast<std::int64_t>(params_.size()) + 1}, at::kLong);
  auto* numbers = steps.data_ptr<std::int64_t>();
  for (std::size_t i = 0; group_.rank() == 0 && i < params_.size(); ++i) {
    if (params_[i].tensor.requires_grad()) numbers[i] = given.at(params_[i].name + ".step").item<std::int64_t>();
  }
  if (group_.rank() == 0) numbers[params_.size()] = given.at("steps").item<std::int64_t>();
  gradients_.broadcast(steps);
  for (std::size_t i = 0; i < params_.size(); ++i) updates_->steps(static_cast<int>(i)) = numbers[i];
  steps_ = numbers[params_.size()];
}

void ShardedModel::load_state(const NamedTensors& given) {
  const at::NoGradGuard guard;
  refuse(group_.rank() == 0 ? mismatch(given) : "");
  guarded([&] {
    end_pass();
    if (passes_) passes_->drain();
    if (shared_) gradients_.barrier();
    const std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
    take_over(by_name);
    take_over_steps(by_name);
    publish(true);
  });
}

Sharded::Memory ShardedModel::memory() {
  const Sharded::Memory now{meter_.parameters, meter_.gradients, meter_.state, meter_.peak};
  meter_.peak = meter_.parameters + meter_.gradients + meter_.state;
  return now;
}

}  // namespace weft::parallel
