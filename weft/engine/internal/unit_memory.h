// The units of a model on this rank, with the memory of their weights, masters and optimizer state.
//
// With shared weights, the flat memory of a unit exists once on the host; else each rank has it
// whole, or only while it is gathered (stage 3). Masters and optimizer state are this rank's shard.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "weft/engine/internal/mapped_file.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/internal/whole_updates.h"
#include "weft/engine/sharded.h"

namespace weft::engine::internal {

class UnitMemory {
 public:
  // All of it outlives the units.
  struct Context {
    const Group& group;
    const Group& weights;  // for gathers
    bool shared;           // the ranks share the weights
    const ShardedOptions& options;
    std::vector<Param>& params;
    Meter& meter;
  };

  // Divides the parameters into units and gives them rank 0's values. Collective.
  explicit UnitMemory(const Context& of);
  // Allocates the optimizer state of the shards, in memory or in a mapped file.
  void place_state(Updates& updates);

  // Copies the masters to the weights that all ranks compute with: those of trained parameters and,
  // with `frozen`, all. Returns when this rank may use them. Without effect if is_gathered(), since
  // the next gather reads the masters. Collective.
  void publish(bool frozen);

  std::vector<Unit>& units() { return units_; }
  const std::vector<Unit>& units() const { return units_; }
  bool is_shared() const { return of_.shared; }
  // A unit has its weights only while its blocks run.
  bool is_gathered() const { return of_.options.stage == 3 && !of_.shared; }
  // This rank's elements of all trained parameters, if the weights exist once for all ranks and the
  // optimizer updates them in place.
  std::vector<WholePiece> shared_pieces() const;
  // Each rank has all weights in memory of its own.
  bool is_whole_on_each_rank() const { return !of_.shared && !is_gathered(); }

 private:
  at::Tensor values_of(const Unit& unit);
  void view_into(Unit& unit);
  void place(Unit& unit);

  const Context of_;
  // Null: state is in memory. Outlives the tensors in it.
  std::unique_ptr<MappedFile> state_file_;
  std::vector<Unit> units_;
};

// The ranks of other groups that have the same shards of a unit; null: none.
inline const std::optional<Group>& replicas_of(const Unit& unit, const ShardedOptions& options) {
  return unit.apart ? options.apart->replicas : options.replicas;
}

}  // namespace weft::engine::internal
