// What is gathered, reduced and updated together: parameters of one type that the same blocks use,
// flat, padded to the ranks.
//
//   flat    | weight | bias …| pad |     whole, in the type computed with; the modules' parameters
//                                        are views of it
//   shard   |rank 0 |rank 1 |rank 2|     each rank's master, gradient and optimizer state
//
// A unit that is not gathered keeps its tensors, without memory below: views that autograd saved
// see the memory that comes back.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/codec_exchange.h"

namespace weft::parallel::internal {

// A parameter, once, however many blocks use it.
struct Param {
  std::string name;  // in the first block that has it
  at::Tensor tensor;
  std::vector<int> blocks = {};
  bool apart = false;    // ShardedOptions::apart
  bool uncoded = false;  // ShardedOptions::uncoded
};

// Counts bytes that a rank holds.
struct Meter {
  std::int64_t parameters = 0, gradients = 0, state = 0, peak = 0;
  void add(std::int64_t& kind, std::int64_t bytes) {
    kind += bytes;
    peak = std::max(peak, parameters + gradients + state);
  }
};

struct Unit {
  std::vector<int> params;
  std::vector<std::int64_t> offsets;  // of each, in elements
  std::vector<int> blocks;
  std::int64_t shard = 0;     // elements of a rank
  std::int64_t elements = 0;  // shard times the ranks
  at::ScalarType type = at::kFloat, master_type = at::kFloat;
  bool trainable = true, apart = false, uncoded = false;

  at::Tensor flat;
  at::Tensor master;    // may be a part of `flat`
  at::Tensor gradient;  // undefined: none
  // Sums shards over the replicas that have the same one; null: there are none.
  std::shared_ptr<CodecExchange> exchange;
  std::vector<at::Tensor> state;  // of the optimizer, as the shard lies

  std::int64_t bytes() const {
    return elements * static_cast<std::int64_t>(c10::elementSize(type));
  }
};

struct UnitOptions {
  int ranks = 1;
  std::optional<at::ScalarType> compute;
  std::int64_t most_bytes = 0;  // of a unit, if it has several parameters; 0: no limit
};

// Deals parameters into units, in the order of their first blocks. Places start at multiples of 16
// elements. Pure.
std::vector<Unit> make_units(const std::vector<Param>& params, const UnitOptions& options);

// The part of a parameter that lies in a rank's shard: elements [begin, end) of the parameter, at
// `at` of the shard; empty where end <= begin.
struct Piece {
  std::int64_t begin = 0, end = 0, at = 0;
};
Piece piece_of(const Unit& unit, std::size_t place, std::int64_t count, int rank);

// Writes a gradient, sparse or not, times `weight` into its flat part of a unit. Scaled before any
// sum, so that this cannot overflow 16-bit floats where the average would not.
void put_scaled(at::Tensor& part, const at::Tensor& gradient, double weight);

// Memory below `unit.flat`: that of `buffer`, which the caller keeps, or none.
void put_below(Unit& unit, const at::Tensor& buffer);

}  // namespace weft::parallel::internal
