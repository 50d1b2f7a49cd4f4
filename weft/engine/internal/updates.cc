#include "weft/engine/internal/updates.h"

#include <ATen/ATen.h>

namespace weft::parallel::internal {
namespace {

// Arrays begin at multiples of so many bytes.
constexpr std::int64_t kArrayLine = 64;

std::int64_t array_bytes(const Unit& unit) {
  return (unit.shard * static_cast<std::int64_t>(c10::elementSize(unit.master_type)) + kArrayLine - 1) / kArrayLine * kArrayLine;
}

std::vector<std::string> names_of(const std::vector<Param>& params) {
  std::vector<std::string> names;
  for (const Param& param : params) names.push_back(param.name);
  return names;
}

struct Due {
  Piece piece;
  std::int64_t step;
};

template <class Number>
void update(const UpdateRule& rule, Unit& unit, const std::vector<at::Tensor>& state, const Due& at) {
  FlatStep<Number> step{.weight = unit.master.data_ptr<Number>() + at.piece.at,
                        .gradient = unit.gradient.const_data_ptr<Number>() + at.piece.at,
                        .count = at.piece.end - at.piece.begin,
                        .step = at.step};
  for (std::size_t array = 0; array < state.size(); ++array) step.state[array] = state[array].data_ptr<Number>() + at.piece.at;
  update_flat(rule, step);
}

}  // namespace

Updates::Updates(OptimizerSpec spec, const std::vector<Param>& params, const std::vector<Unit>& units, const ShardedOptions& options)
    : spec_(std::move(spec)), rules_(spec_, names_of(params)), steps_(params.size(), 0), state_(units.size()) {
  for (const Param& param : params) sizes_.push_back(param.tensor.numel());
  const std::size_t arrays = state_names(spec_.rule).size();
  for (const Unit& unit : units) bytes_ += unit.trainable ? array_bytes(unit) * static_cast<std::int64_t>(arrays) : 0;
  if (!options.offload.empty() && bytes_ > 0) file_ = std::make_unique<MappedFile>(options.offload, static_cast<std::size_t>(bytes_));
  std::byte* next = file_ ? file_->data() : nullptr;
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (std::size_t array = 0; units[i].trainable && array < arrays; ++array) {
      const auto type = at::TensorOptions(units[i].master_type);
      state_[i].push_back(file_ ? at::from_blob(next, {units[i].shard}, type) : at::empty({units[i].shard}, type));
      state_[i].back().fill_(spec_.initial_accumulator);
      if (file_) next += array_bytes(units[i]);
    }
  }
}

void Updates::step(std::vector<Unit>& units, int rank, const std::vector<bool>& used) {
  for (std::size_t i = 0; i < units.size(); ++i) {
    Unit& unit = units[i];
    if (!unit.trainable || !unit.gradient.defined()) continue;
    for (std::size_t place = 0; place < unit.params.size(); ++place) {
      const auto param = static_cast<std::size_t>(unit.params[place]);
      if (!used[param]) continue;
      const Due at{piece_of(unit, place, sizes_[param], rank), ++steps_[param]};
      if (at.piece.end <= at.piece.begin) continue;
      const UpdateRule rule = rules_.of(param, spec_.rule);
      if (unit.master_type == at::kDouble) {
        update<double>(rule, unit, state_[i], at);
      } else {
        update<float>(rule, unit, state_[i], at);
      }
    }
  }
}

}  // namespace weft::parallel::internal
