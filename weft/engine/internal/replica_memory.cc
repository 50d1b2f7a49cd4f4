#include "weft/engine/internal/replica_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "weft/engine/internal/shared_block.h"
#include "weft/engine/internal/weights_trial.h"
#include "weft/net/memory/host.h"

namespace weft::engine::internal {
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

void ReplicaMemory::place(const Request& request) {
  updates_ = &request.updates;
  std::vector<std::byte*> weights;
  for (std::size_t i = 0; i < params_.trained(); ++i)
    weights.push_back(static_cast<std::byte*>(params_[i].tensor.data_ptr()));
  if (request.host != nullptr && group_.size() > 1) {
    private_ = request.weights == Weights::kPrivate;
    if (!private_) share_weights(request, weights);
  }
  std::vector<Updates::Place> places(params_.trained());
  for (std::size_t array = 0; array < updates_->arrays().size(); ++array)
    place_state(places, array);
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    places[i].weight = weights[i];
    updates_->put(static_cast<int>(i), places[i]);
    if (request.first_value != 0 && writes())
      state_of(static_cast<int>(i), 0).fill_(request.first_value);
  }
}

void ReplicaMemory::place_on_device(Updates& updates, double first_value) {
  updates_ = &updates;
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    const at::Tensor weight = params_[i].tensor.detach();
    std::vector<at::Tensor> state;
    for (std::size_t array = 0; array < updates.arrays_of(static_cast<int>(i)); ++array) {
      state.push_back(at::full_like(weight, array == 0 ? first_value : 0.0));
      state_bytes_ += static_cast<std::int64_t>(state.back().nbytes());
    }
    updates.put_on_device(static_cast<int>(i), weight, std::move(state));
  }
}

ReplicaMemory::Layout ReplicaMemory::layout(const std::function<bool(int param)>& has_part) const {
  Layout made;
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    const bool has = has_part(static_cast<int>(i));
    made.offsets.push_back(has ? made.bytes : -1);
    const auto bytes = static_cast<std::int64_t>(params_[i].tensor.nbytes());
    if (has) made.bytes += (bytes + 63) / 64 * 64;
  }
  return made;
}

// Copies rank 0's values into memory that all ranks of the host share. The parameters move there
// unless private weights prove faster.
void ReplicaMemory::share_weights(const Request& request, std::vector<std::byte*>& weights) {
  const at::NoGradGuard guard;
  const auto [offsets, bytes] = layout([](int) { return true; });
  std::byte* const block = request.host->share(static_cast<std::size_t>(bytes), group_.timeout());
  std::vector<std::byte*> shared;
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    shared.push_back(block + offsets[i]);
    if (group_.rank() == 0) std::memcpy(shared.back(), weights[i], params_[i].tensor.nbytes());
  }
  group_.barrier();
  private_ = request.weights == Weights::kAuto && updates_->spec().max_grad_norm <= 0 &&
             !optim::needs_whole_tensors(updates_->spec().rule) && bytes <= kTrialMostBytes &&
             private_is_faster(request.trial, shared, weights);
  if (private_) return;
  shared_ = true;
  weights = shared;
  const auto memory = std::make_shared<SharedBlock>(group_, block, bytes);
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    // The memory lives as long as a tensor in it.
    at::Tensor param = params_[i].tensor;
    param.set_data(at::from_blob(
        shared[i], param.sizes(), [memory](void*) {}, param.options().requires_grad(false)));
  }
  group_.barrier();
}

// Memory for an array of optimizer state, for the parameters that have it.
void ReplicaMemory::place_state(std::vector<Updates::Place>& places, std::size_t array) {
  const auto [offsets, bytes] =
      layout([&](int param) { return array < updates_->arrays_of(param); });
  if (bytes == 0) return;
  std::byte* block = nullptr;
  if (shared_) {
    block = group_.host()->share(static_cast<std::size_t>(bytes), group_.timeout());
  } else {
    own_state_.push_back(at::zeros({bytes}, at::kByte));
    block = static_cast<std::byte*>(own_state_.back().data_ptr());
  }
  state_bytes_ += bytes;
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    if (offsets[i] >= 0) places[i].state[array] = block + offsets[i];
  }
}

at::Tensor ReplicaMemory::state_of(int param, std::size_t array) const {
  return updates_->state(param, array, params_[index(param)].tensor.sizes());
}

WholePiece ReplicaMemory::piece(std::size_t param) const {
  const std::int64_t parts = shared_ ? group_.size() : 1, part = shared_ ? group_.rank() : 0,
                     elements = params_[param].tensor.numel();
  return {static_cast<int>(param), elements * part / parts, elements * (part + 1) / parts};
}

std::vector<WholePiece> ReplicaMemory::shared_pieces() const {
  std::vector<WholePiece> all;
  for (std::size_t i = 0; shared_ && i < params_.trained(); ++i) {
    all.push_back(piece(i));
    if (all.back().end <= all.back().begin) all.pop_back();
  }
  return all;
}

void ReplicaMemory::each_state(
    const std::function<void(const std::string&, at::Tensor)>& visit) const {
  WEFT_CHECK(updates_ != nullptr, "the model has no optimizer");
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    for (std::size_t array = 0; array < updates_->arrays_of(static_cast<int>(i)); ++array) {
      visit(params_[i].name + "." + updates_->arrays()[array],
            state_of(static_cast<int>(i), array));
    }
  }
}

void ReplicaMemory::share_rank_0() {
  const at::NoGradGuard guard;
  const auto take = [&](at::Tensor tensor) { group_.broadcast(tensor, 0); };
  for (std::size_t i = 0; i < params_.trained(); ++i) take(params_[i].tensor.detach());
  each_state([&](const std::string&, const at::Tensor& state) { take(state); });
}

void ReplicaMemory::take_over(const std::map<std::string, at::Tensor>& given) {
  const auto put = [&](const std::string& name, at::Tensor into) {
    at::Tensor value = group_.rank() == 0
                           ? given.at(name).to(into.device(), into.scalar_type()).contiguous()
                           : at::empty_like(into);
    group_.broadcast(value, 0);
    if (writes()) into.copy_(value);
  };
  for (const Param& param : params_.all()) put(param.name, param.tensor.detach());
  each_state(put);
}

checkpoint::Slices ReplicaMemory::slices(const Sharded::Placing& placing, Wanted wanted,
                                         const ModuleWatch& watch) const {
  // Each rank has memory of its own for what the program has loaded.
  const auto is_shared = [&](std::size_t param) {
    return shared_ && param < params_.trained() && !watch.is_moved(param);
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
    for (std::size_t array = 0;
         wanted != Wanted::kWeights && updates_ != nullptr && i < params_.trained() &&
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
  // A tensor without entries is saved too, so that a reader finds its name and shape.
  std::erase_if(own, [&](const checkpoint::Slice& slice) {
    return slice.tensor.numel() == 0 && !(wanted == Wanted::kToSave && slice.is_whole());
  });
  return own;
}

Sharded::Memory ReplicaMemory::used() const {
  Sharded::Memory now;
  const int sharers = shared_ ? group_.size() : 1;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto bytes = static_cast<std::int64_t>(params_[i].tensor.nbytes());
    now.parameters += bytes / sharers;
    if (i < params_.trained()) now.gradients += bytes;
  }
  now.state = state_bytes_ / sharers;
  now.peak = now.parameters + now.gradients + now.state;
  return now;
}

}  // namespace weft::engine::internal
