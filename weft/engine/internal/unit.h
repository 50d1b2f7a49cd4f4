// Unit: parameters that are gathered, reduced and updated together. They have one type and are used
// by the same blocks. They are flat and padded to the number of ranks.
//
//   flat    | weight | bias …| pad |     whole, in the type of the computation; the parameters of
//                                        the modules are views of it
//   shard   |rank 0 |rank 1 |rank 2|     each rank's master, gradient and optimizer state
//
// A unit that is not gathered keeps its tensors without memory. When it is gathered again, views
// that autograd saved see the new memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/engine/gradient_check.h"

namespace weft::engine::internal {

// A parameter. It appears once, however many blocks use it.
struct Param {
  std::string name;  // name in the first block that has it
  at::Tensor tensor;
  std::vector<int> blocks = {};
  bool apart = false;      // ShardedOptions::apart
  bool uncoded = false;    // ShardedOptions::uncoded
  std::size_t arrays = 0;  // of optimizer state
};

// Counts the bytes that a rank holds.
struct Meter {
  std::int64_t parameters = 0, gradients = 0, state = 0, peak = 0;
  void add(std::int64_t& kind, std::int64_t bytes) {
    kind += bytes;
    peak = std::max(peak, parameters + gradients + state);
  }
};

struct Unit {
  // Its parameters and their places, from make_units().
  std::vector<int> params;
  std::vector<std::int64_t> offsets;  // offset of each parameter, in elements
  std::vector<int> blocks;
  std::int64_t shard = 0;     // elements of a rank
  std::int64_t elements = 0;  // shard times the number of ranks
  at::ScalarType type = at::kFloat, master_type = at::kFloat;
  bool trainable = true, apart = false, uncoded = false;
  std::size_t arrays = 0;  // of optimizer state, the same for all its parameters

  // Its memory on this rank, from UnitMemory.
  at::Tensor flat;
  // The parameters, if it is gathered. They explain errors while they have no memory.
  std::vector<at::Tensor> gathered;
  at::Tensor master;              // may be a view of `flat`
  std::vector<at::Tensor> state;  // optimizer state, in the layout of the shard

  std::int64_t bytes() const {
    return elements * static_cast<std::int64_t>(c10::elementSize(type));
  }
  // The shard of a rank in a tensor like `flat`.
  at::Tensor shard_of(const at::Tensor& whole, int rank) const {
    return whole.narrow(0, rank * shard, shard);
  }
  // True if the optimizer keeps another copy of the weights: `master` is no view of `flat`.
  bool has_copy() const;
};

struct UnitOptions {
  int ranks = 1;
  std::optional<at::ScalarType> compute;
  std::int64_t most_bytes = 0;  // limit of a unit with several parameters; 0: no limit
};

// Divides parameters into units, in the order of their first blocks. Parameters start at multiples
// of 16 elements. A pure function.
std::vector<Unit> make_units(const std::vector<Param>& params, const UnitOptions& options);

// The part of a parameter in a rank's shard: elements [begin, end) of the parameter, at position
// `at` of the shard.
struct Piece {
  int param = 0;
  std::int64_t begin = 0, end = 0, at = 0;

  std::int64_t count() const { return end - begin; }
  // This part of the rank's shard.
  at::Tensor of(const at::Tensor& shard) const { return shard.narrow(0, at, count()); }
};
// The parts of the unit's parameters in a rank's shard, in their order. None is empty.
std::vector<Piece> pieces_of(const Unit& unit, const std::vector<Param>& params, int rank);

// Writes a gradient (dense or sparse) times `weight` into its part of a flat tensor. It is scaled
// before any sum, so that 16-bit floats overflow only if the average does. Writes zeros if there is
// no gradient, or if `check` (may be null) finds that it is not finite.
void put_gradient(at::Tensor& part, int param, const at::Tensor& gradient, double weight,
                  GradientCheck* check);

// Sets the memory of `unit.flat` to that of `buffer`, which the caller keeps alive, or to none. Use
// of the values is then an error.
void put_below(Unit& unit, const at::Tensor& buffer);

}  // namespace weft::engine::internal
