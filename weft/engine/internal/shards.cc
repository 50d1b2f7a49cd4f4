// A model's state as slices, in place, and the memory of a replica's optimizer state.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>

#include "weft/comm/texts.h"
#include "weft/engine/internal/replica.h"
#include "weft/net/memory/host.h"

namespace weft::engine {
namespace {

// The last slice of a divided dimension may reach beyond the whole tensor.
void remove_padding(checkpoint::Slice& slice) {
  for (std::size_t d = 0; d < slice.shape.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    const std::int64_t there =
        std::clamp<std::int64_t>(slice.shape[d] - slice.offset[d], 0, slice.tensor.size(dim));
    slice.tensor = slice.tensor.narrow(dim, 0, there);
  }
}

}  // namespace

// Memory for an array of optimizer state, for the parameters that have it.
void Replica::place_state(std::vector<internal::Updates::Place>& places, std::size_t array) {
  std::vector<std::int64_t> offsets(trained_, -1);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < trained_; ++i) {
    if (array >= updates_->arrays_of(static_cast<int>(i))) continue;
    offsets[i] = bytes;
    bytes += padded_bytes(trained_params_[i]);
  }
  if (bytes == 0) return;
  std::byte* block = nullptr;
  if (shared_weights_) {
    block = group_.host()->share(static_cast<std::size_t>(bytes), group_.timeout());
  } else {
    own_state_.push_back(at::zeros({bytes}, at::kByte));
    block = static_cast<std::byte*>(own_state_.back().data_ptr());
  }
  state_bytes_ += bytes;
  for (std::size_t i = 0; i < trained_; ++i) {
    if (offsets[i] >= 0) places[i].state[array] = block + offsets[i];
  }
}

Sharded::Memory Replica::memory() {
  Sharded::Memory now;
  const int sharers = shared_weights_ ? group_.size() : 1;
  for (const auto& param : params_)
    now.parameters += static_cast<std::int64_t>(param.tensor.nbytes()) / sharers;
  for (const auto& param : trained_params_)
    now.gradients += static_cast<std::int64_t>(param.nbytes());
  now.state = state_bytes_ / sharers;
  now.peak = now.parameters + now.gradients + now.state;
  return now;
}

// Tensors that are equal on all ranks are divided among them for saving. On loading, each rank
// fills all of its own.
checkpoint::Slices Replica::slices(const Sharded::Placing& placing, Wanted wanted) {
  // Each rank has memory of its own for what the program has loaded.
  const auto is_shared = [&](std::size_t param) {
    return shared_weights_ && param < trained_ && !watch().is_moved(param);
  };
  checkpoint::Slices together, own;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const checkpoint::Rectangle rectangle = rectangle_of(params_[i], placing);
    if (rectangle.name.empty()) continue;
    checkpoint::Slices& into = wanted == Wanted::kToSave || is_shared(i) ? together : own;
    const auto add = [&](const at::Tensor& whole, const std::string& suffix) {
      into.push_back({rectangle.name + suffix, rectangle.shape, rectangle.offset, whole.detach()});
    };
    add(params_[i].tensor, "");
    for (std::size_t array = 0; wanted != Wanted::kWeights && updates_ && i < trained_ &&
                                array < updates_->arrays_of(static_cast<int>(i));
         ++array) {
      add(state_of(static_cast<int>(i), array), "." + updates_->arrays()[array]);
    }
  }
  // Dealt with their padding, since slices of several ranks of tp then have the same sizes and are
  // dealt alike.
  for (auto& slice : checkpoint::deal(std::move(together), group_.rank(), group_.size()))
    own.push_back(std::move(slice));
  for (checkpoint::Slice& slice : own) remove_padding(slice);
  std::erase_if(own, [](const checkpoint::Slice& slice) { return slice.tensor.numel() == 0; });
  return own;
}

checkpoint::Slices Engine::shards(const Sharded::Placing& placing) {
  const at::NoGradGuard guard;
  settle();
  checkpoint::Slices all = slices(placing, Wanted::kToSave);
  if (!updates_) return all;
  for (std::size_t i = 0; i < trained_; ++i) {
    const std::string name = rectangle_of(params_[i], placing).name;
    if (name.empty() || static_cast<int>(i) % group_.size() != group_.rank()) continue;
    all.push_back(checkpoint::whole_slice(
        name + ".step", at::scalar_tensor(updates_->steps(static_cast<int>(i)), at::kLong)));
    if (!whole_) continue;
    for (const auto& [state, tensor] : whole_->state(static_cast<int>(i)))
      all.push_back(checkpoint::whole_slice(name + "." + state, tensor));
  }
  if (group_.rank() == 0)
    all.push_back(checkpoint::whole_slice("steps", at::scalar_tensor(steps_, at::kLong)));
  return all;
}

checkpoint::Slices Engine::held(const Sharded::Placing& placing) {
  const at::NoGradGuard guard;
  settle();
  checkpoint::Slices all = slices(placing, Wanted::kToLoad);
  if (counts_held_apart()) held_changes_.lend(all);
  return all;
}

void Engine::take_changes() {
  const at::NoGradGuard guard;
  guarded([&] {
    begin_load();
    watch().check(false);  // tensors of held() have versions of their own
    if (!is_held_changed_anywhere()) check_values();
    take_loaded();
    end_load();
  });
}

void Engine::check_changes() {
  const at::NoGradGuard guard;
  guarded([&] {
    settle();
    if (!is_held_changed_anywhere()) check_values();
  });
}

void Engine::load_shards(const checkpoint::SliceSource& source, const Sharded::Placing& placing,
                         bool weights_only) {
  const at::NoGradGuard guard;
  settle();
  weights_only = weights_only || !updates_;
  std::map<int, at::Tensor> steps;
  const at::Tensor done = at::scalar_tensor(steps_, at::kLong);
  const auto wanted = [&] {
    checkpoint::Slices all = slices(placing, weights_only ? Wanted::kWeights : Wanted::kToReplace);
    for (std::size_t i = 0; !weights_only && i < trained_; ++i) {
      const std::string name = rectangle_of(params_[i], placing).name;
      if (name.empty()) continue;
      at::Tensor& step = steps[static_cast<int>(i)] = at::scalar_tensor(0, at::kLong);
      all.push_back(checkpoint::whole_slice(name + ".step", step));
      if (!whole_) continue;
      for (const auto& [state, tensor] : whole_->state(static_cast<int>(i)))
        all.push_back(checkpoint::whole_slice(name + "." + state, tensor));
    }
    if (!weights_only) all.push_back(checkpoint::whole_slice("steps", done));
    return all;
  };
  on_all_ranks([&] { source.check(wanted()); });
  // Drops values that the program has given by torch::load(). The slices then have other memory.
  go_home();
  const checkpoint::Slices mine = wanted();
  guarded([&] { begin_load(); });
  on_all_ranks([&] { source.fill(mine); });
  guarded([&] {
    for (const auto& [param, step] : steps) updates_->steps(param) = step.item<std::int64_t>();
    steps_ = done.item<std::int64_t>();
    end_load();
  });
}

// An error of the group itself ends all groups of the model.
void Engine::on_all_ranks(const std::function<void()>& body) {
  const auto exchange = [&](const std::string& mine) {
    return guarded([&] { return comm::all_gather_texts(group_, mine); });
  };
  comm::together(
      group_, body,
      {.operation = "load_shards", .failed = "cannot load its slices", .exchange = exchange});
}

void Replica::end_load() {
  if (group_.size() > 1) group_.barrier();
  watch().rebase(true);
  note_held();
  note_written();
}

}  // namespace weft::engine
