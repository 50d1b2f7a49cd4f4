// Where the memory of a unit is, after place():
//
//                         flat                  master                      tensors of the module
//   shared weights        once for the host     this rank's part of flat *  views of flat
//   stages 1, 2, private  whole on each rank    this rank's part of flat *  views of flat
//   stage 3, private      none until gathered   a copy                      views of flat, refusing
//
//   * a copy if the masters have another type than the computation
//
// put_below() exchanges the memory under `flat` and leaves its tensors as they are. So views that
// the module or autograd hold see the gathered values, and have no memory when the unit is
// released.
//
// Units are placed one after the other. So at most one whole copy of a unit (values_of) exists
// beside the parameters.
//
// Order: rank 0's values reach all ranks (values_of), each rank keeps its part, and the parameters
// become views. All ranks run this for the same units in the same order, since it is collective.
#include "weft/engine/internal/unit_memory.h"

#include <ATen/ATen.h>

#include "weft/engine/block.h"
#include "weft/engine/internal/shared_block.h"
#include "weft/engine/parameter_cuts.h"
#include "weft/net/memory/host.h"

namespace weft::engine::internal {
namespace {

// Of a parameter that is gathered while its blocks run.
std::string refusal_of(const Param& param) {
  return "the values of '" + param.name +
         "' are divided over the ranks between two steps (ZeRO-3); to read them, call state() of "
         "the parallel model, or gather() of a parallelize() model; to write them, call "
         "torch::load() or load_state()";
}

}  // namespace

UnitMemory::UnitMemory(const Context& of) : of_(of) {
  const bool bounded = of_.options.stage < 3;
  units_ = make_units(
      of_.params, {.ranks = of_.group.size(),
                   .compute = of_.options.compute,
                   .most_bytes = bounded ? static_cast<std::int64_t>(of_.options.unit_bytes) : 0});
  for (auto& unit : units_) place(unit);
}

// Rank 0's values, in the type of the masters.
at::Tensor UnitMemory::values_of(const Unit& unit) {
  at::Tensor whole = at::zeros({unit.elements}, at::TensorOptions(unit.master_type));
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const at::Tensor param = of_.params[index(unit.params[place])].tensor.detach();
    at::Tensor into = whole.narrow(0, unit.offsets[place], param.numel());
    const at::Tensor& given = of_.params[index(unit.params[place])].tensor;
    if (of_.options.cuts && of_.options.cuts->has(given)) {
      of_.options.cuts->take(given, into);
    } else {
      into.copy_(param.reshape(-1));
    }
  }
  // The replicas take the values of their first rank, and then each group those of its rank 0. So
  // all groups end with the values of the first group's rank 0.
  if (const auto& replicas = replicas_of(unit, of_.options)) replicas->broadcast(whole);
  of_.group.broadcast(whole);
  return whole;
}

void UnitMemory::view_into(Unit& unit) {
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    at::Tensor& param = of_.params[index(unit.params[place])].tensor;
    param.set_data(unit.flat.narrow(0, unit.offsets[place], param.numel()).view(param.sizes()));
  }
}

void UnitMemory::place(Unit& unit) {
  const at::NoGradGuard guard;
  const at::Tensor whole = values_of(unit);
  const auto mine = [&](const at::Tensor& of) { return unit.shard_of(of, of_.group.rank()); };
  if (of_.shared) {
    std::byte* const block =
        of_.weights.host()->share(static_cast<std::size_t>(unit.bytes()), of_.weights.timeout());
    // The memory lives as long as a tensor in it.
    const auto memory = std::make_shared<SharedBlock>(of_.weights, block, unit.bytes());
    unit.flat = at::from_blob(
        block, {unit.elements}, [memory](void*) {}, at::TensorOptions(unit.type));
    mine(unit.flat).copy_(mine(whole));
    // No rank may use the parameters before all ranks have written their parts.
    of_.group.barrier();
  } else {
    unit.flat = whole.to(unit.type);
  }
  unit.master =
      unit.master_type == unit.type && !is_gathered() ? mine(unit.flat) : mine(whole).clone();
  view_into(unit);
  if (is_gathered()) {
    for (const int param : unit.params) {
      unit.gathered.push_back(of_.params[index(param)].tensor);
      engine::refuse(unit.gathered.back(), refusal_of(of_.params[index(param)]));
    }
    put_below(unit, {});
  }
  const auto shard_bytes = static_cast<std::int64_t>(unit.master.nbytes());
  if (!is_gathered())
    of_.meter.add(of_.meter.parameters,
                  of_.shared ? unit.bytes() / of_.group.size() : unit.bytes());
  if (is_gathered() && unit.master_type == unit.type) {
    of_.meter.add(of_.meter.parameters, shard_bytes);
  } else if (unit.master_type != unit.type) {
    of_.meter.add(of_.meter.state, shard_bytes);
  }
}

void UnitMemory::place_state(Updates& updates) {
  const auto bytes_of_array = [](const Unit& unit) {
    // Arrays in a mapped file begin at cache lines, as those of the allocator do.
    return (unit.shard * static_cast<std::int64_t>(c10::elementSize(unit.master_type)) + 63) / 64 *
           64;
  };
  std::int64_t bytes = 0;
  for (const auto& unit : units_)
    bytes += unit.trainable ? bytes_of_array(unit) * static_cast<std::int64_t>(unit.arrays) : 0;
  if (!of_.options.offload.empty() && bytes > 0) {
    state_file_ =
        std::make_unique<MappedFile>(of_.options.offload, static_cast<std::size_t>(bytes));
  }
  std::byte* next = state_file_ ? state_file_->data() : nullptr;
  for (auto& unit : units_) {
    if (!unit.trainable) continue;
    for (std::size_t array = 0; array < unit.arrays; ++array) {
      const auto type = at::TensorOptions(unit.master_type);
      unit.state.push_back(state_file_ ? at::from_blob(next, {unit.shard}, type)
                                       : at::empty({unit.shard}, type));
      unit.state.back().fill_(updates.spec().initial_accumulator);
      if (state_file_) next += bytes_of_array(unit);
    }
    for (const Piece& piece : pieces_of(unit, of_.params, of_.group.rank())) {
      const auto at = [&](const at::Tensor& flat) {
        return static_cast<std::byte*>(flat.data_ptr()) +
               static_cast<std::size_t>(piece.at) * flat.element_size();
      };
      Updates::Place mine{.weight = at(unit.master), .first = piece.begin};
      for (std::size_t array = 0; array < unit.arrays; ++array)
        mine.state[array] = at(unit.state[array]);
      updates.put(piece.param, mine);
    }
  }
  of_.meter.add(of_.meter.state, bytes);
}

std::vector<WholePiece> UnitMemory::shared_pieces() const {
  std::vector<WholePiece> all;
  for (const Unit& unit : units_) {
    if (!unit.trainable) continue;
    if (!of_.shared || unit.has_copy()) return {};
    for (const Piece& piece : pieces_of(unit, of_.params, of_.group.rank()))
      all.push_back({piece.param, piece.begin, piece.end});
  }
  return all;
}

void UnitMemory::publish(bool frozen) {
  const at::NoGradGuard guard;
  if (is_gathered()) return;
  for (Unit& unit : units_) {
    if (!unit.trainable && !frozen) continue;
    const at::Tensor mine = unit.shard_of(unit.flat, of_.group.rank());
    if (mine.data_ptr() != unit.master.data_ptr()) mine.copy_(unit.master);
    if (!of_.shared) of_.group.all_gather(unit.flat, mine.clone());
  }
  if (of_.shared) of_.group.barrier();
}

}  // namespace weft::engine::internal
