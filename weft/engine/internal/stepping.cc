// The end of a step of a sharded model, and its saved state.
//
// Order of step(), and the reason for each wait:
//   collect()               takes part in passes that only peers have made; waits for all sums
//   take_module_changes()   values that the program has loaded count before the update
//   norm_of_shards()        each rank has a part of the squares, so all get the norm by one sum
//   drain()                 gathers under way still read the masters that change next
//   barrier, if shared      other ranks may still compute with these weights
//   update()                each rank updates its own shard
//   publish()               masters become the weights of all; ends with a gather or a barrier
//   sync_buffers()          statistics of rank 0
//
// After publish() a rank may compute with all weights. At stage 3 with private weights it does
// nothing: the next gather reads the masters.
#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "weft/engine/internal/sharded_model.h"
#include "weft/engine/squares.h"

namespace weft::engine {

using Direction = internal::Passes::Direction;

// All gradients have reached their shards.
void ShardedModel::collect() {
  end_pass();
  const Shown shown(*this);
  if (!left_) {
    watch().gradients().check();
    watch().gradients().forget();
    reducer_->settle();
    // No backward of this rank has sent gradients. Peers may wait in the gathers of theirs, and in
    // those of a forward if this rank had none.
    if (options_.stage > 1) empty_passes(!forward_pending_);
    reducer_->finish(true);
    left_ = true;
    samples_->reset();
  }
  reducer_->settle();
}

void ShardedModel::send_gradients() {
  guarded([&] {
    reducer_->settle();
    reducer_->finish(true);
    left_ = true;
    samples_->reset();
    hide_gradients();
  });
}

void ShardedModel::await_gradients() {
  guarded([&] {
    if (!stepped_) collect();
  });
}

void ShardedModel::each_gradient(
    const std::function<void(const std::string&, const at::Tensor&)>& take) {
  guarded([&] {
    await_gradients();
    for (const auto& unit : units()) {
      if (!unit.gradient.defined()) continue;
      for (std::size_t place = 0; place < unit.params.size(); ++place) {
        const auto& param = params_[static_cast<std::size_t>(unit.params[place])];
        const auto piece = internal::piece_of(unit, place, param.tensor.numel(), group_.rank());
        if (piece.end > piece.begin)
          take(param.name, unit.gradient.narrow(0, piece.at, piece.end - piece.begin));
      }
    }
  });
}

double ShardedModel::norm_of_shards() {
  double squares = 0;
  for (const auto& unit : units()) {
    if (unit.gradient.defined()) squares += squares_of(unit.gradient);
  }
  at::Tensor sum = at::scalar_tensor(squares, at::kDouble);
  group_.all_reduce(sum);
  return std::sqrt(sum.item<double>());
}

Sharded::Finite ShardedModel::are_finite() {
  return guarded([&]() -> Sharded::Finite {
    if (!stepped_) collect();
    return {reducer_->all_finite(), reducer_->knows_all()};
  });
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
    WEFT_REQUIRE(reducer_->is_in_range(),
                 "step: a sum of gradients is not finite in the codec f16, whose largest number is "
                 "65504; use the codec bf16, or make gradients smaller");
    take_module_changes();
    const double most = updates_->spec().max_grad_norm;
    if (most > 0) {
      const double norm = norm_of_shards() * std::abs(scale);
      scale *= optim::clip_factor(norm, most);
    }
    for (auto& unit : units()) {
      if (scale != 1 && unit.gradient.defined()) unit.gradient.mul_(scale);
    }
    if (passes_) passes_->drain();
    if (shared_) group_.barrier();
    update();
    publish(false);
    sync_buffers();
    watch().rebase();
    note_held();
    reducer_->keep();
    ++steps_;
    left_ = false;
    stepped_ = true;
  });
}

void ShardedModel::update_piece(int param, const internal::Piece& piece, const std::byte* gradient,
                                internal::WrittenCheck& check) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(updates_->type(param)));
  const auto in_block = [&](std::int64_t begin, std::int64_t end,
                            std::span<const std::byte> weights) {
    if (gradient == nullptr) return check.stays(weights.data(), weights.size(), begin);
    check.before(weights.data(), weights.size(), begin);
    updates_->update(param, begin, end, gradient + (begin - piece.begin) * element);
    check.after(weights.data(), weights.size(), begin);
  };
  updates_->each_block(param, piece.begin, piece.end, check.on(), in_block);
}

void ShardedModel::update() {
  const auto& used = reducer_->used();
  std::vector<internal::WholePiece> pieces;
  for (auto& unit : units()) {
    if (!unit.trainable || !unit.gradient.defined()) continue;
    internal::WrittenCheck check(is_written_once(unit));
    for (std::size_t place = 0; place < unit.params.size(); ++place) {
      const int param = unit.params[place];
      const auto piece = internal::piece_of(
          unit, place, params_[internal::index(param)].tensor.numel(), group_.rank());
      if (piece.end <= piece.begin) continue;
      // No rank used it, so it stays as it is, but its checksum goes on.
      if (!used[internal::index(param)]) {
        update_piece(param, piece, nullptr, check);
        continue;
      }
      const auto* const first = static_cast<const std::byte*>(unit.gradient.const_data_ptr());
      const std::byte* const gradient =
          first + static_cast<std::size_t>(piece.at) * unit.gradient.element_size();
      if (whole_) {
        pieces.push_back({param, piece.begin, piece.end, gradient});
      } else {
        update_piece(param, piece, gradient, check);
      }
    }
    end_written(unit, check, unit.written);
  }
  if (whole_) update_whole(std::move(pieces), used, true, is_whole_once());
  updates_->stepped(used);
}

// Agrees first among the replicas of rank 0's shard. These then tell the other ranks of their
// groups.
void ShardedModel::sync_buffers() {
  if (options_.replicas) buffers_.broadcast(*options_.replicas);
  if (group_.size() > 1) buffers_.broadcast(group_);
}

// Copies the masters to the weights that all ranks compute with. At stage 3 the next gather does
// this.
void ShardedModel::publish(bool frozen) {
  const at::NoGradGuard guard;
  if (passes_) return;
  for (auto& unit : units()) {
    if (!unit.trainable && !frozen) continue;
    const at::Tensor mine = unit.flat.narrow(0, group_.rank() * unit.shard, unit.shard);
    if (mine.data_ptr() != unit.master.data_ptr()) mine.copy_(unit.master);
    if (!shared_) group_.all_gather(unit.flat, mine.clone());
  }
  if (shared_) group_.barrier();
}

void ShardedModel::zero_grad() {
  guarded([&] {
    if (hidden_) hidden_->show();
    reducer_->clear();
    samples_->drop();
    watch().gradients().forget();
  });
  left_ = stepped_ = false;
}

// Rank 0 collects the parameters from the shards of all ranks.
void ShardedModel::visit_parts(const internal::Unit& unit, const at::Tensor& shard,
                               const std::string& suffix, const Visit& visit) const {
  const auto parts = group_.gather(shard, 0);
  if (group_.rank() != 0) return;
  const at::Tensor whole = at::cat(parts).view({unit.elements});
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const auto& param = params_[internal::index(unit.params[place])];
    visit(param.name + suffix,
          whole.narrow(0, unit.offsets[place], param.tensor.numel()).view(param.tensor.sizes()));
  }
}

ShardedModel::NamedTensors ShardedModel::gradients() {
  const at::NoGradGuard guard;
  return guarded([&] {
    if (!stepped_) collect();
    std::map<std::string, bool> in_use;
    for (std::size_t i = 0; i < params_.size(); ++i) in_use[params_[i].name] = reducer_->used()[i];
    NamedTensors all;
    for (const auto& unit : units()) {
      if (!unit.trainable) continue;
      visit_parts(unit, unit.gradient, "", [&](const std::string& name, const at::Tensor& whole) {
        if (in_use[name]) all.emplace_back(name, whole.clone());
      });
    }
    return all;
  });
}

void ShardedModel::each_whole(const Visit& visit) {
  if (shared_) group_.barrier();  // other ranks may still compute with shared masters
  if (!is_held_changed_anywhere()) check_values();
  pull_moved();
  for (const auto& unit : units()) {
    visit_parts(unit, unit.master, "", visit);
    for (std::size_t array = 0; array < unit.state.size(); ++array) {
      visit_parts(unit, unit.state[array], "." + updates_->arrays()[array], visit);
    }
  }
}

void ShardedModel::take_over(const std::map<std::string, at::Tensor>& given) {
  begin_load();
  go_home();
  pulled_.clear();
  const bool root = group_.rank() == 0;
  const auto put = [&](const internal::Unit& unit, const std::string& suffix, at::Tensor into) {
    std::vector<at::Tensor> parts;
    if (root) {
      at::Tensor whole = at::zeros({unit.elements}, at::TensorOptions(unit.master_type));
      for (std::size_t place = 0; place < unit.params.size(); ++place) {
        const at::Tensor& value =
            given.at(params_[internal::index(unit.params[place])].name + suffix);
        whole.narrow(0, unit.offsets[place], value.numel()).copy_(value.reshape(-1));
      }
      parts = whole.split(unit.shard);
    }
    at::Tensor shard = at::empty({unit.shard}, at::TensorOptions(unit.master_type));
    group_.scatter(shard, parts, 0);
    into.copy_(shard);
  };
  for (const auto& unit : units()) {
    put(unit, "", unit.master);
    for (std::size_t array = 0; array < unit.state.size(); ++array)
      put(unit, "." + updates_->arrays()[array], unit.state[array]);
  }
  end_load();
}

Sharded::Memory ShardedModel::memory() {
  const Sharded::Memory now{meter_.parameters, meter_.gradients, meter_.state, meter_.peak};
  meter_.peak = meter_.parameters + meter_.gradients + meter_.state;
  return now;
}

}  // namespace weft::engine
