// Saves and loads the weights and the optimizer state of units: whole on rank 0, or as slices in
// place, for checkpoints that no rank ever holds completely.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/state_slices.h"
#include "weft/engine/internal/unit_memory.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/sharded.h"

namespace weft::engine::internal {

class ShardedState {
 public:
  using Visit = std::function<void(const std::string& name, const at::Tensor& whole)>;

  // All of it outlives this object.
  struct Context {
    const Group& group;
    const std::vector<Param>& params;
    const UnitMemory& memory;
    const Updates& updates;
    const ModuleWatch& watch;
  };
  explicit ShardedState(const Context& of) : of_(of) {}

  // Rank 0 visits all weights ("<name>") and all optimizer state ("<name>.<array>"). Collective.
  void each_whole(const Visit& visit) const;
  // Rank 0 visits the whole tensors ("<name>" + `suffix`) of which each rank has a `shard` of the
  // unit. Collective.
  void each_whole_of(const Unit& unit, const at::Tensor& shard, const std::string& suffix,
                     const Visit& visit) const;
  // The inverse of each_whole(): all ranks get their parts of rank 0's `state`. Collective.
  void scatter(const std::map<std::string, at::Tensor>& state) const;

  // This rank's part of all weights and optimizer state. To save, weights are those of the module
  // if the program has given it other memory, else the masters. Rank 0 then adds parameters without
  // entries, so that a reader finds their names and shapes.
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) const;

 private:
  void add_without_entries(const Unit& unit, const Sharded::Placing& placing,
                           checkpoint::Slices& all) const;

  const Context of_;
};

}  // namespace weft::engine::internal
