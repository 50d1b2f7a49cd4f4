// Takes over what the program has changed in the weights of a sharded model between two steps, or
// refuses it (module_watch.h).
//
// Costs some comparisons in most steps. In steps that are due (ModuleWatch::is_due()), one pass
// over the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/shard_updates.h"
#include "weft/engine/internal/unit_memory.h"

namespace weft::engine::internal {

// Functions throw Error(kInvalidArgument) for a change that cannot count, with the parameter's
// name. That is so on all ranks if they compare values, else on the ranks that notice it.
class ShardedChanges {
 public:
  // All of it outlives this object.
  struct Context {
    const Group& group;
    const std::optional<Group>& replicas;
    const std::vector<Param>& params;
    const UnitMemory& memory;
    ShardUpdates& updates;
    ModuleWatch& watch;
    std::function<bool()> is_held_changed;  // the program has written to tensors of held()
  };
  // Writing to weights is refused from now on, if it cannot count.
  explicit ShardedChanges(Context of);

  // Before the update of step number `step`: takes the values of parameters that got other memory,
  // and compares what is due. `alike`: GradientReport::alike(). Collective.
  void take(std::int64_t step, bool alike);
  // Between two steps, after loads on all ranks: takes the values of parameters that got other
  // memory, unless pull_for_held() has taken them. The caller brings the parameters home and
  // publishes the masters. Collective.
  void take_loaded();
  // Copies this rank's part of parameters that got other memory to its masters.
  void pull();
  // As pull(), for held(): the program may change the masters next, so take_loaded() must not take
  // these values again.
  void pull_for_held();
  void forget_pulled() { pulled_.clear(); }

  // Looks for values that the program has written in place since the last update, on this rank.
  void check_written();
  // As check_written(); private weights that are whole on each rank are compared. Reads all
  // weights. Collective.
  void check_values();
  // As check_written(), in the weights `whole` of a unit. The optimizer keeps another copy of them.
  void check_copy(const Unit& unit, const at::Tensor& whole) const;

 private:
  // Memory that the program has loaded, and its version, by parameter.
  using Pulled = std::map<std::size_t, std::pair<c10::Storage, std::int64_t>>;

  void check_copies() const;
  void compare_private();
  void compare_changes(bool whole);
  std::uint64_t bits_of_weights(bool with_apart) const;
  void pull_except(const Pulled& pulled);

  const Context of_;
  Pulled pulled_;  // by pull_for_held()
};

}  // namespace weft::engine::internal
