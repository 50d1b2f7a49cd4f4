// A model's state as slices, in place, for checkpoints that no rank ever holds completely.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <string>

#include "weft/comm/texts.h"
#include "weft/engine/internal/replica.h"
#include "weft/engine/internal/sharded_model.h"

namespace weft::engine {
namespace {

// Entries of a parameter or of its state from `begin` on. Padding has no entries.
void add_range(const checkpoint::Rectangle& place, const std::string& suffix, std::int64_t begin,
               const at::Tensor& flat, checkpoint::Slices& into) {
  checkpoint::Rectangle named = place;
  named.name += suffix;
  for (auto& slice : checkpoint::slices_of_range(named, begin, flat))
    into.push_back(std::move(slice));
}

}  // namespace

checkpoint::Slices ShardedModel::slices(const Sharded::Placing& placing, Wanted wanted) {
  // To save, values that the program has given to the module are taken from there: it is not
  // collective, so another rank may still use shared masters.
  const bool saves = wanted == Wanted::kToSave;
  if (saves) {
    if (!is_held_changed()) check_written();
  } else if (wanted == Wanted::kToLoad) {
    pull_moved();
    for (const int param : watch().moved(params_.size())) {
      const at::Tensor& tensor = params_[internal::index(param)].tensor;
      pulled_[internal::index(param)] = {tensor.storage(), tensor._version()};
    }
  }
  checkpoint::Slices all;
  for (const internal::Unit& unit : units()) {
    for (std::size_t place = 0; place < unit.params.size(); ++place) {
      const internal::Param& param = params_[internal::index(unit.params[place])];
      const internal::Piece piece =
          internal::piece_of(unit, place, param.tensor.numel(), group_.rank());
      const checkpoint::Rectangle rectangle = internal::rectangle_of(param, placing);
      if (piece.end <= piece.begin || rectangle.name.empty()) continue;
      const auto mine = [&](const at::Tensor& shard) {
        return shard.narrow(0, piece.at, piece.end - piece.begin);
      };
      const bool is_moved = watch().is_moved(internal::index(unit.params[place]));
      add_range(rectangle, "", piece.begin,
                saves && is_moved ? param.tensor.detach()
                                        .reshape({-1})
                                        .narrow(0, piece.begin, piece.end - piece.begin)
                                        .to(unit.master_type)
                                  : mine(unit.master),
                all);
      for (std::size_t array = 0; wanted != Wanted::kWeights && array < unit.state.size();
           ++array) {
        add_range(rectangle, "." + updates_->arrays()[array], piece.begin, mine(unit.state[array]),
                  all);
      }
    }
  }
  return all;
}

checkpoint::Slices Engine::shards(const Sharded::Placing& placing) {
  const at::NoGradGuard guard;
  settle();
  checkpoint::Slices all = slices(placing, Wanted::kToSave);
  if (!updates_) return all;
  for (std::size_t i = 0; i < trained_; ++i) {
    const std::string name = internal::rectangle_of(params_[i], placing).name;
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
      const std::string name = internal::rectangle_of(params_[i], placing).name;
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

void ShardedModel::begin_load() {
  end_pass();
  if (passes_) passes_->drain();
  if (shared_) group_.barrier();
}

void ShardedModel::end_load() {
  publish(true);
  watch().rebase(true);
  note_held();
  note_written();
  if (shared_) group_.barrier();
}

}  // namespace weft::engine
