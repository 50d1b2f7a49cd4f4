// The state of a sharded model as slices, in place, for checkpoints that no rank ever holds
// completely.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string>

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
