// The units of a model on this rank, with the memory of their weights, masters and optimizer state.
//
// With shared weights, the flat memory of a unit exists once on the host; else each rank has it
// whole, or only while it is gathered (stage 3). Masters and optimizer state are this rank's shard.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/engine/internal/mapped_file.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/internal/updates.h"
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

  std::vector<Unit>& units() { return units_; }
  // A unit has its weights only while its blocks run.
  bool is_gathered() const { return of_.options.stage == 3 && !of_.shared; }
  // The memory of the codecs for exchanges with replicas.
  std::vector<std::span<float>> codec_memory();

 private:
  at::Tensor values_of(const Unit& unit);
  void view_into(Unit& unit);
  void place(Unit& unit);
  void join_replicas();
  const std::optional<Group>& replicas_of(const Unit& unit) const;

  const Context of_;
  // Null: state is in memory. Outlives the tensors in it.
  std::unique_ptr<MappedFile> state_file_;
  std::vector<Unit> units_;
};

}  // namespace weft::engine::internal
