#include "weft/engine/internal/sharded_state.h"

#include <ATen/ATen.h>

namespace weft::engine::internal {

void ShardedState::each_whole(const Visit& visit) const {
  for (const Unit& unit : of_.memory.units()) {
    each_whole_of(unit, unit.master, "", visit);
    for (std::size_t array = 0; array < unit.state.size(); ++array)
      each_whole_of(unit, unit.state[array], "." + of_.updates.arrays()[array], visit);
  }
}

void ShardedState::each_whole_of(const Unit& unit, const at::Tensor& shard,
                                 const std::string& suffix, const Visit& visit) const {
  const auto parts = of_.group.gather(shard, 0);
  if (of_.group.rank() != 0) return;
  const at::Tensor whole = at::cat(parts).view({unit.elements});
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const Param& param = of_.params[index(unit.params[place])];
    visit(param.name + suffix,
          whole.narrow(0, unit.offsets[place], param.tensor.numel()).view(param.tensor.sizes()));
  }
}

void ShardedState::scatter(const std::map<std::string, at::Tensor>& state) const {
  const bool root = of_.group.rank() == 0;
  const auto put = [&](const Unit& unit, const std::string& suffix, at::Tensor into) {
    std::vector<at::Tensor> parts;
    if (root) {
      at::Tensor whole = at::zeros({unit.elements}, at::TensorOptions(unit.master_type));
      for (std::size_t place = 0; place < unit.params.size(); ++place) {
        const at::Tensor& value = state.at(of_.params[index(unit.params[place])].name + suffix);
        whole.narrow(0, unit.offsets[place], value.numel()).copy_(value.reshape(-1));
      }
      parts = whole.split(unit.shard);
    }
    at::Tensor shard = at::empty({unit.shard}, at::TensorOptions(unit.master_type));
    of_.group.scatter(shard, parts, 0);
    into.copy_(shard);
  };
  for (const Unit& unit : of_.memory.units()) {
    put(unit, "", unit.master);
    for (std::size_t array = 0; array < unit.state.size(); ++array)
      put(unit, "." + of_.updates.arrays()[array], unit.state[array]);
  }
}

checkpoint::Slices ShardedState::slices(const Sharded::Placing& placing, Wanted wanted) const {
  const bool saves = wanted == Wanted::kToSave;
  checkpoint::Slices all;
  for (const Unit& unit : of_.memory.units()) {
    for (const Piece& piece : pieces_of(unit, of_.params, of_.group.rank())) {
      const Param& param = of_.params[index(piece.param)];
      const checkpoint::Rectangle rectangle = rectangle_of(param, placing);
      if (rectangle.name.empty()) continue;
      // Entries of the parameter or of its state. Padding has no entries.
      const auto add = [&](const std::string& suffix, const at::Tensor& flat) {
        checkpoint::Rectangle named = rectangle;
        named.name += suffix;
        for (auto& slice : checkpoint::slices_of_range(named, piece.begin, flat))
          all.push_back(std::move(slice));
      };
      const bool of_module = saves && of_.watch.is_moved(index(piece.param));
      add("", of_module ? param.tensor.detach()
                              .reshape({-1})
                              .narrow(0, piece.begin, piece.count())
                              .to(unit.master_type)
                        : piece.of(unit.master));
      if (wanted == Wanted::kWeights) continue;
      for (std::size_t array = 0; array < unit.state.size(); ++array)
        add("." + of_.updates.arrays()[array], piece.of(unit.state[array]));
    }
    if (saves && of_.group.rank() == 0) add_without_entries(unit, placing, all);
  }
  return all;
}

void ShardedState::add_without_entries(const Unit& unit, const Sharded::Placing& placing,
                                       checkpoint::Slices& all) const {
  for (const int i : unit.params) {
    const Param& param = of_.params[index(i)];
    if (param.tensor.numel() > 0) continue;
    const checkpoint::Rectangle rectangle = rectangle_of(param, placing);
    if (rectangle.name.empty() || rectangle.sizes != rectangle.shape) continue;
    const at::Tensor none = at::empty(rectangle.shape, at::TensorOptions(unit.master_type));
    all.push_back(checkpoint::whole_slice(rectangle.name, none));
    for (std::size_t array = 0; array < unit.state.size(); ++array)
      all.push_back(
          checkpoint::whole_slice(rectangle.name + "." + of_.updates.arrays()[array], none));
  }
}

}  // namespace weft::engine::internal
